"""Rasters of different grids and coordinate systems on the grid of one map."""
