"""Read remote files (HTTP, HTTPS and buckets) by byte range where the server supports that."""
