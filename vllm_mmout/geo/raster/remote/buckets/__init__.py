"""Read, list and atomically write files in buckets (S3, Google Cloud Storage, Azure)."""
