"""Georeferenced rasters, their tiles and their polygons: a library that knows nothing of torch or vLLM."""
