"""Reading through GDAL what nothing else here reads, by way of rasterio (extra ``gdal``)."""
