"""Rasters of classes as polygons, traced a band of rows at a time; knows of `raster` and `errors` alone."""
