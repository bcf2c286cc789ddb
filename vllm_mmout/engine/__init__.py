"""Every contact with vLLM's insides: hooks, binding, routing of outputs, decoding, and what travels."""
