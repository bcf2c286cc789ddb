"""Areas of interest: reading them from GeoJSON, placing them on rasters, and masking pixels."""
