"""Requests as they come: bodies, forms, JSON, and the fields in them."""
