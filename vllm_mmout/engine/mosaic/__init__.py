"""Mosaics: several scenes run one by one, and their results joined to one map."""
