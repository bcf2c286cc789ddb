"""Serve OpenAI's image routes with an iterative model, such as a diffusers pipeline."""
