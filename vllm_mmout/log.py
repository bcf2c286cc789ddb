"""The logger of code that runs in an engine, a child of vLLM's logger, so that vLLM's settings apply to it."""

from __future__ import annotations

from vllm.logger import init_logger

logger = init_logger("vllm.mmout")
