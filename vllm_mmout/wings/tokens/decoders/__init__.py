"""Decoders that turn generated codes into pixels or audio samples. Their weights are in local folders."""
