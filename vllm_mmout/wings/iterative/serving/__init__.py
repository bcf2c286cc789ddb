"""OpenAI's image routes for a server whose model is iterative."""
