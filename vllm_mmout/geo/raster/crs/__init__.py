"""Parsing of coordinate systems from untrusted texts, which are checked before PROJ reads them."""
