"""Code that runs in vLLM's engine core and worker processes. It calls ``reduce``, and limits and traces the steps."""
