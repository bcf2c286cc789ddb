"""Every contact with vLLM's internals: hooks, binding, requests, scenes, decoding and the worker."""
