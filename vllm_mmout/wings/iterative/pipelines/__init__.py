"""Pipelines of diffusers, unchanged: each request runs its own, and their networks' calls are run together."""
