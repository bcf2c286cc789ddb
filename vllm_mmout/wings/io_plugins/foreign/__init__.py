"""Installed IO Processor plugins of vLLM's as output processors: their own code makes the inputs and the results."""
