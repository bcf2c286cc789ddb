"""Load models that do not generate text, convert their inputs, and run them on vLLM."""
