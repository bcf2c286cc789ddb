"""The lines of the log that say with which status, and why, requests and jobs failed."""

from __future__ import annotations

import logging
from contextlib import contextmanager


@contextmanager
def failures_logged():
    """Collect these lines while the block runs, however vLLM's log is set up."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage()) if " failed with " in record.getMessage() else None
    logger = logging.getLogger("vllm.mmout")
    before = logger.level
    logger.setLevel("INFO")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
