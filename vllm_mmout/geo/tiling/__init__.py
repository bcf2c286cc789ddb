"""Tile grids of rasters, and the blending weights with which the output tiles are joined."""
