"""Files in buckets (S3, Google Cloud Storage, Azure), read by parts, listed, and written whole or not at all."""
