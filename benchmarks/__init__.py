"""Benchmarks of vllm_mmout; ``python -m benchmarks`` runs them."""
