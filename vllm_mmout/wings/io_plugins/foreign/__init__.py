"""Installed IO Processor plugins as output processors: a plugin's own code makes the inputs and the results."""
