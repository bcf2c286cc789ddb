"""The output processors of heads: what transformers' own ``post_process_*`` make, as objects of ours."""
