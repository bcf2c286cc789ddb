"""Several rasters as one, on one grid."""
