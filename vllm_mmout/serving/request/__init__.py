"""Read HTTP requests: parse forms and JSON, and check their fields."""
