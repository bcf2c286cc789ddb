"""Count the unfinished tiles of all requests, and measure how long a tile takes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from vllm_mmout.engine.observer import SILENT, Observer

MEMORY_S = 30.0
"""Time constant in seconds of the exponential moving average of the time per tile. Idle time does not count."""


class Countable(Protocol):
    """Protocol of a request whose unfinished tiles `Backlog` counts."""

    total: int
    """Number of tiles."""
    done: int
    """Number of finished tiles."""


@dataclass(slots=True)
class Backlog:
    """Counter of the unfinished tiles of all requests in this process. It also estimates the time to finish the tiles.

    The backlog is not thread-safe. The seconds of a tile are the time in which the backlog was not empty, divided by
    the number of tiles finished in that time. This counts all engines together, and includes reading and joining.
    """

    observer: Observer = SILENT
    _seen: dict[Countable, int] = field(default_factory=dict)
    """Number of finished tiles of each request at the last call of `look`."""
    _looked: float = 0.0
    _waiting: int = 0
    _seconds: float = 0.0
    _done: float = 0.0

    @contextmanager
    def holding(self, request: Countable) -> Iterator[None]:
        """Include a request's unfinished tiles in the backlog while the ``with`` block runs."""
        self._seen[request] = request.done
        self.look()
        try:
            yield
        finally:
            self.look()
            del self._seen[request]
            self.look()

    def look(self) -> None:
        """Report the number of unfinished tiles to the observer, with an estimate of the time to finish the tiles."""
        now, done, waiting = time.monotonic(), 0, 0
        for request, before in self._seen.items():
            done += request.done - before
            waiting += max(0, request.total - request.done)
            self._seen[request] = request.done
        if self._waiting:
            passed = now - self._looked
            kept = math.exp(-passed / MEMORY_S)
            self._seconds = self._seconds * kept + passed
            self._done = self._done * kept + done
        self._looked, self._waiting = now, waiting
        self.observer.backlog(waiting, waiting * self._seconds / self._done if self._done else 0.0)
