"""Use other packages' IO Processor plugins as output processors. A plugin makes the prompts and the result."""
