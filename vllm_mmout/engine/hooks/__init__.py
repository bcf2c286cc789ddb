"""Every contact with vLLM's internals: the hook table, the wrappers, and the binding of engines."""
