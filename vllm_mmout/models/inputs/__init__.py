"""The input side of a model: from what a user hands over to the tensors of ``forward``."""
