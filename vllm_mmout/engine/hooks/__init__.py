"""Every contact with vLLM's insides: the table of hooks, what they wrap, and the classes of bound engines."""
