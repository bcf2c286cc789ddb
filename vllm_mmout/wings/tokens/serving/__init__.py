"""Serving of models that generate tokens: pictures and speech out of texts."""
