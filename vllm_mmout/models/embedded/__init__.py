"""The model and the scene that come with the package, so that it can be tried without a download."""
