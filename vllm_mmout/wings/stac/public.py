"""The public names of ``vllm_mmout.stac``."""

from __future__ import annotations

from vllm_mmout.wings.stac.searching import search

__all__ = ["search"]
