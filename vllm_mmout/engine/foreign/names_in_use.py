"""NamesInUse: the ids under which a plugin keeps what belongs to its requests."""

from __future__ import annotations

import threading
from uuid import uuid4


class NamesInUse:
    """Gives each request in flight an id that no other one has: its caller's, where that is free."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._lock = threading.Lock()

    def take(self, wanted: str) -> str:
        """An id that is free, beginning with the one wanted."""
        with self._lock:
            name = wanted
            while not name or name in self._used:
                name = f"{wanted}-{uuid4().hex}" if wanted else uuid4().hex
            self._used.add(name)
            return name

    def give(self, name: str) -> None:
        """Let an id be used again."""
        with self._lock:
            self._used.discard(name)
