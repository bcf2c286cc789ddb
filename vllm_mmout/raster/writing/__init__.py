"""Writing GeoTIFFs: cloud-optimised, block by block."""
