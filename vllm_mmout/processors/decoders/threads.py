"""Threads of a decoder on the CPU: as many as it was given, while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def decoder_threads(count: int | None) -> Iterator[None]:
    """Have torch use so many threads for what this thread runs, and as many as before afterwards.

    Args:
        count: threads; None: as it is.

    """
    import torch

    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
