"""Openers of the inputs of requests: uploads, addresses, local files, data URLs."""
