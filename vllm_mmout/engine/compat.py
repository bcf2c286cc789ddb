"""Questions about the vLLM that is installed; the only place that may speak of its version."""

from __future__ import annotations


def vllm_version() -> str:
    """The version that vLLM says it is; the CPU build has no ``vllm`` distribution to ask."""
    import vllm

    return str(getattr(vllm, "__version__", "of unknown version"))
