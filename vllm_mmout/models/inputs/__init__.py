"""Convert users' inputs to the tensors that a model's ``forward`` takes."""
