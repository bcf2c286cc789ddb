"""Modules that take a request from ``generate`` through the engine to its decoded output."""
