"""Scale, offset and fill value of satellite products, read from their metadata files."""
