"""Build HTTP responses: encode results, and send, stream or store them."""
