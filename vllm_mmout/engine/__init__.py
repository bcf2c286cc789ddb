"""Integration with vLLM: all code that depends on vLLM's internals, from its hooks to its workers."""
