"""Read the scale, offset and fill value of satellite products from their metadata files."""
