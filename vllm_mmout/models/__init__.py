"""Run models that need a single forward pass on vLLM."""
