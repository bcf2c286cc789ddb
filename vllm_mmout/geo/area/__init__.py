"""Areas of interest: their GeoJSON, their place on a raster, and the masks of their pixels."""
