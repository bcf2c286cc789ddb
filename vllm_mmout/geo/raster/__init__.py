"""Reading and writing georeferenced rasters as arrays."""
