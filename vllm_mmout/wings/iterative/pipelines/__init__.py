"""Serve unchanged diffusers pipelines. Each request runs its own pipeline, and similar network calls are batched."""
