"""Tries each architecture of transformers."""
