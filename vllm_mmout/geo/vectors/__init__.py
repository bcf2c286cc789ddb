"""Polygons traced from class rasters, a band of rows at a time. Imports only `raster` and `errors`."""
