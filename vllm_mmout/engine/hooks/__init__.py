"""Replacements for parts of vLLM, so that its engines return images, rasters and sounds."""
