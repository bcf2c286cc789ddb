"""Output processors of heads: wrap the results of transformers' own ``post_process_*`` in this package's outputs."""
