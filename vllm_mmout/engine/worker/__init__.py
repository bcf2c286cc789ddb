"""Code for the engine core and worker processes: pooler with ``reduce``, batch waits, step limit, tracing."""
