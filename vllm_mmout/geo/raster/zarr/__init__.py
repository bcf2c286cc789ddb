"""Read rasters from Zarr stores, versions 2 and 3, in a folder or a zip file.

The metadata, the chunks and the zip file may come from a stranger. Therefore all sizes are limited, and chunks are
decoded here, into buffers of the size that the metadata state, and not by zarr-python.
"""
