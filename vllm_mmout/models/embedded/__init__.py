"""Provide a small model and a scene as part of the package, to try the package without a download."""
