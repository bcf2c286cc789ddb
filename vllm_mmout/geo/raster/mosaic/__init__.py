"""Combine rasters with different grids or coordinate systems into one map."""
