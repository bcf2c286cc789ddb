"""Files in buckets (S3, Google Cloud Storage, Azure): reading by byte range, listing and atomic writing."""
