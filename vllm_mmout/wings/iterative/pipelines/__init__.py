"""Unchanged pipelines of diffusers: each request has its own run, and similar network calls are batched."""
