"""Decoders that turn the codes of token models into pixels or samples. They are loaded from local folders."""
