"""Combine several rasters on a common grid."""
