"""Define the logger of code that runs in the engine. It is a child of vLLM's logger, so vLLM's settings apply."""

from __future__ import annotations

from vllm.logger import init_logger

logger = init_logger("vllm.mmout")
