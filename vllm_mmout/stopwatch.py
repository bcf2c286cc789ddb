"""`Stopwatch`: measures the time that a thread spends reading or writing pixels, for an engine with a trace."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Stopwatch:
    """Counter of the seconds spent on files since the last `take`."""

    def __init__(self) -> None:
        self._seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Add the time spent inside the context to the counter."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._seconds += time.monotonic() - start

    def take(self) -> float:
        """Return the seconds counted so far, and reset the counter."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


FILES: ContextVar[Stopwatch | None] = ContextVar("mmout_files", default=None)
"""Stopwatch for the time that the current request spends on files, or None if the time is not measured."""
