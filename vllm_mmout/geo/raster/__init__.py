"""Read and write georeferenced rasters as NumPy arrays."""
