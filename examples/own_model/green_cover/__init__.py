"""Percentage of green plants in each pixel of a Sentinel-2 image: a model, its output processor, and its weights."""
