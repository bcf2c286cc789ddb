"""Code that runs in vLLM's engine core and worker processes, such as ``reduce`` and the time limit of a step."""
