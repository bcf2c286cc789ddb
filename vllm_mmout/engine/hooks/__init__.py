"""Changes to vLLM's own callables and objects, so that its engines return images, rasters and sounds."""
