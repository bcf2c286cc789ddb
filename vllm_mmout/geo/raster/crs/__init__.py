"""Coordinate systems as texts of strangers, looked at before PROJ sees them."""
