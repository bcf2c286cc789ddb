"""Readers of requests: bodies, forms, JSON, and their fields."""
