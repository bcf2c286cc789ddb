"""Adapters that run models with one forward pass on vLLM, and the small model that this package includes."""
