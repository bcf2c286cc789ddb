"""Use installed IO Processor plugins as output processors. A plugin makes a request's prompts and its result."""
