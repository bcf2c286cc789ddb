"""Tile grids of rasters, and the blending of output tiles."""
