"""What all scenes of an engine may have in flight together, in turns."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class TileBudget:
    """A budget of tiles and bytes, taken before a tile is read and given back when it has been joined to the result.

    Scenes that wait are served in the order in which they asked, one tile each: they take turns. A tile that alone is
    larger than the budget is admitted when nothing else is in flight.

    Args:
        count: tiles in flight at most.
        nbytes: bytes of input in flight at most.

    """

    def __init__(self, count: int, nbytes: int) -> None:
        self.count = count
        self.nbytes = nbytes
        self.used_count = 0
        self.used_bytes = 0
        self._turns: deque[object] = deque()
        self._lock = threading.RLock()  # of C: an interrupt can come between the lines of Condition's own `with`
        self._changed = threading.Condition(self._lock)

    def take(self, nbytes: int, stopped: Callable[[], bool]) -> bool:
        """Wait for a place; False if the scene was stopped meanwhile (`wake` tells those who wait)."""
        turn = object()
        with self._lock:
            self._turns.append(turn)
            try:
                while not stopped() and (self._turns[0] is not turn or not self._fits(nbytes)):
                    self._changed.wait()
                if stopped():
                    return False
                self.used_count += 1
                self.used_bytes += nbytes
                return True
            finally:
                self._turns.remove(turn)
                self._changed.notify_all()

    def give(self, nbytes: int, count: int = 1) -> None:
        """Give the places of ``count`` tiles of ``nbytes`` each back."""
        with self._lock:
            self.used_count -= count
            self.used_bytes -= nbytes * count
            self._changed.notify_all()

    def room(self, nbytes: int) -> int:
        """How many tiles of so many bytes there is room for when nothing else is in flight; at least one."""
        return max(1, min(self.count, self.nbytes // nbytes))

    def wake(self) -> None:
        """Let those who wait see whether they were stopped."""
        with self._lock:
            self._changed.notify_all()

    def _fits(self, nbytes: int) -> bool:
        fits = self.used_count < self.count and self.used_bytes + nbytes <= self.nbytes
        return fits or self.used_count == 0
