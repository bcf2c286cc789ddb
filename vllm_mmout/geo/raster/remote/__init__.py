"""Files on HTTP and HTTPS servers, read by byte range where the server supports that."""
