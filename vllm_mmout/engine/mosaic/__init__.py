"""Mosaics: each of several scenes runs on its own, and their results are joined to one map."""
