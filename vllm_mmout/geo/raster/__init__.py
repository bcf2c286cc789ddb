"""Georeferenced rasters as arrays: reading, writing, and where on Earth they lie."""
