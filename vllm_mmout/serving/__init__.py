"""HTTP server: vLLM's own server with routes for models that do not answer in text, and the command that starts it."""
