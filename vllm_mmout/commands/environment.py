"""What a command sets before vLLM is imported: quiet, quick, and results alone on standard output."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from typing import Final

QUIET: Final = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "PYTHONWARNINGS": "ignore",  # for the engine's own processes
}
"""Set for a user who has not asked vLLM for its log."""

ALWAYS: Final = {
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; single-pass models use none of it
}
"""Set where the user has not set it."""


def prepare_environment() -> None:
    """Fill in what the user's environment leaves open; ``VLLM_LOGGING_LEVEL=INFO`` brings the engine's log back."""
    if "VLLM_LOGGING_LEVEL" not in os.environ:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        logging.getLogger("vllm").setLevel(logging.ERROR)  # for what vLLM says before it sets up its log
        if not sys.warnoptions:
            warnings.simplefilter("ignore")
    for name, value in ALWAYS.items():
        os.environ.setdefault(name, value)
