"""Cutting rasters into tiles, and the weights with which tiles are joined."""
