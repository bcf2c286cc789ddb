"""Stacking of several rasters on a common grid."""
