"""Our part of the server: routes beside those of vLLM, and the command that switches them on."""
