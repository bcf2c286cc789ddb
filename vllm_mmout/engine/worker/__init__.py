"""Code for vLLM's engine core and worker processes, such as the call of ``reduce`` and the step time limit."""
