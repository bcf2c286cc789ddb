"""Output processors of models that generate tokens."""
