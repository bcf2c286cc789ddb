"""Backlog: the tiles that a frontend has taken in and not done, and how long they take."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from vllm_mmout.engine.observer import SILENT, Observer

MEMORY_S = 30.0
"""Seconds of work after which what was measured counts for a third."""


class Countable(Protocol):
    """A request of so many tiles, of which so many are done."""

    total: int
    done: int


@dataclass(slots=True)
class Backlog:
    """The tiles of all requests of a frontend; used from one thread.

    The seconds of a tile are those of the clock while anything was waiting, by the tiles that were done in them: of all
    engines together, with reading and joining.
    """

    observer: Observer = SILENT
    _seen: dict[Countable, int] = field(default_factory=dict)
    """Requests, and how many tiles of each were done when it was looked at last."""
    _looked: float = 0.0
    _waiting: int = 0
    _seconds: float = 0.0
    _done: float = 0.0

    @contextmanager
    def holding(self, request: Countable) -> Iterator[None]:
        """Count a request's tiles; those that are not done when it ends are waited for no more."""
        self._seen[request] = request.done
        self.look()
        try:
            yield
        finally:
            self.look()
            del self._seen[request]
            self.look()

    def look(self) -> None:
        """See how many are done by now, and say how many are not."""
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
