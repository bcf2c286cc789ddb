"""Routes that are added to vLLM's server, and the command that switches them on."""
