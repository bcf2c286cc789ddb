"""What lies beside a TIFF and belongs to it: world files, GDAL's PAM, masks."""
