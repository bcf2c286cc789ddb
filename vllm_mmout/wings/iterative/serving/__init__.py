"""OpenAI's image routes of a server whose model is iterative."""
