"""Trace polygons from class rasters, a strip of rows at a time, so that memory stays bounded."""
