"""Limits on the number and the bytes of the requests and tiles in flight."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class _Budget:
    """Limit on the number and bytes of items in flight. A single item is admitted even if it exceeds the limit."""

    def __init__(self, count: int, nbytes: int) -> None:
        self.count = count
        self.nbytes = nbytes
        self.used_count = 0
        self.used_bytes = 0

    def _fits(self, nbytes: int, count: int = 1) -> bool:
        fits = self.used_count + count <= self.count and self.used_bytes + nbytes * count <= self.nbytes
        return fits or self.used_count == 0

    def _take(self, nbytes: int, count: int = 1) -> None:
        self.used_count += count
        self.used_bytes += nbytes * count


class Credits(_Budget):
    """Limit on the requests in flight whose input is not cut into tiles. Not thread-safe.

    It limits their number and bytes. Waiting requests are admitted in the order of arrival.
    """

    def __init__(self, count: int, nbytes: int) -> None:
        super().__init__(count, nbytes)
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def try_take(self, nbytes: int) -> bool:
        """Admit a request at once if it fits the limit and no other request waits. Return whether it was admitted."""
        if self._waiting or not self._fits(nbytes):
            return False
        self._take(nbytes)
        return True

    def give(self, nbytes: int) -> None:
        """Count a request of ``nbytes`` bytes as finished, and admit waiting requests."""
        self.used_count -= 1
        self.used_bytes -= nbytes
        self._admit()

    @asynccontextmanager
    async def held(self, nbytes: int) -> AsyncIterator[None]:
        """Wait until a request of ``nbytes`` bytes is admitted, and count it while the ``with`` block runs."""
        if not self.try_take(nbytes):
            await self._wait(nbytes)
        try:
            yield
        finally:
            self.give(nbytes)

    async def _wait(self, nbytes: int) -> None:
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (nbytes, admitted)
        self._waiting.append(entry)
        try:
            await admitted
        except asyncio.CancelledError:
            if entry in self._waiting:
                self._waiting.remove(entry)
                self._admit()
            elif not admitted.cancelled():  # admitted and cancelled in the same iteration of the event loop
                self.give(nbytes)
            raise

    def _admit(self) -> None:
        while self._waiting and (self._waiting[0][1].done() or self._fits(self._waiting[0][0])):
            nbytes, admitted = self._waiting.popleft()
            if not admitted.done():
                self._take(nbytes)
                admitted.set_result(None)


class TileBudget(_Budget):
    """Limit on the number and bytes of tiles in memory. A tile counts until it is part of the scene's result.

    Threads that wait for memory get it in the order of their calls.
    """

    def __init__(self, count: int, nbytes: int) -> None:
        super().__init__(count, nbytes)
        self._turns: deque[object] = deque()
        self._lock = threading.RLock()  # written in C, so that an interrupt cannot leave it held
        self._changed = threading.Condition(self._lock)

    def take(self, nbytes: int, stopped: Callable[[], bool], count: int = 1) -> bool:
        """Wait until the budget has room for ``count`` tiles of ``nbytes`` bytes each, and reserve that room.

        Return False if ``stopped`` returns True. ``stopped`` is called again after each `wake`.
        """
        turn = object()
        with self._lock:
            self._turns.append(turn)
            try:
                while not stopped() and (self._turns[0] is not turn or not self._fits(nbytes, count)):
                    self._changed.wait()
                if stopped():
                    return False
                self._take(nbytes, count)
                return True
            finally:
                self._turns.remove(turn)
                self._changed.notify_all()

    def give(self, nbytes: int, count: int = 1) -> None:
        """Remove ``count`` tiles of ``nbytes`` bytes each from the budget, after they were joined or dropped."""
        with self._lock:
            self.used_count -= count
            self.used_bytes -= nbytes * count
            self._changed.notify_all()

    def room(self, nbytes: int) -> int:
        """Return how many tiles of ``nbytes`` bytes each fit into the empty budget, at least 1."""
        return max(1, min(self.count, self.nbytes // nbytes))

    def wake(self) -> None:
        """Wake the threads that are blocked in `take`, so that they check whether their requests were stopped."""
        with self._lock:
            self._changed.notify_all()
