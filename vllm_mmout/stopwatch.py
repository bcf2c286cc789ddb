"""`Stopwatch`: measures the time that requests spend on reading and writing files, for traces of an engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Stopwatch:
    """Timer that adds up the seconds spent in its `running` contexts."""

    def __init__(self) -> None:
        self._seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Measure the time spent inside the context, and add it to the total of the stopwatch."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._seconds += time.monotonic() - start

    def take(self) -> float:
        """Return the total of all measured times in seconds, and reset it to 0."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


FILES: ContextVar[Stopwatch | None] = ContextVar("mmout_files", default=None)
"""Stopwatch for the file access of the current request, or None if the time is not measured."""
