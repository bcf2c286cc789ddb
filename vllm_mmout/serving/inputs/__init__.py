"""Open the inputs of client requests: uploads, URLs, local files and data URLs."""
