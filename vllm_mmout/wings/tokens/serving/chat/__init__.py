"""Add pictures and sounds to the answers of vLLM's chat route."""
