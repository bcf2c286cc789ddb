"""Adapters that run single-pass models on vLLM, and the embedded model."""
