"""Parse coordinate systems from untrusted text, which is checked before PROJ reads it."""
