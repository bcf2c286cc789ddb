"""The logger of what runs in an engine: below vLLM's own, so that it is set up with it."""

from __future__ import annotations

from vllm.logger import init_logger

logger = init_logger("vllm.mmout")
