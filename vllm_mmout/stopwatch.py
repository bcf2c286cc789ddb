"""Stopwatch: how long a thread has read or written pixels, for a traced engine; nobody else has one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Stopwatch:
    """Seconds that were spent on files since it was last asked."""

    def __init__(self) -> None:
        self._seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time inside."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._seconds += time.monotonic() - began

    def take(self) -> float:
        """The seconds, which are counted anew from now on."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


FILES: ContextVar[Stopwatch | None] = ContextVar("mmout_files", default=None)
"""That of this thread; None where nobody asks."""
