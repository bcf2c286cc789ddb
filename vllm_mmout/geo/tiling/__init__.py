"""Divide rasters into overlapping tiles, and blend the outputs of a model for these tiles."""
