"""Output processors that convert the results of transformers' ``post_process_*`` to this package's outputs."""
