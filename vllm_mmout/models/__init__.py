"""Single-pass models on vLLM, and the embedded one."""
