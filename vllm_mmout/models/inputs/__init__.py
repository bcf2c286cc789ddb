"""Conversion of users' inputs to the tensors of a model's ``forward``."""
