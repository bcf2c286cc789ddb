"""Serve models that generate tokens over HTTP: pictures and speech from texts."""
