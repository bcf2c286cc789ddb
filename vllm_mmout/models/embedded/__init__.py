"""The embedded model and the embedded scene, for trying the package without a download."""
