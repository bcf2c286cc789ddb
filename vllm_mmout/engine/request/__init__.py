"""Code that takes a request from ``generate`` through the engine to its decoded result."""
