"""Provide a small model and a scene that are part of the package, for trying it without a download."""
