"""Use installed IO Processor plugins as output processors. The plugin's code makes the prompts and the results."""
