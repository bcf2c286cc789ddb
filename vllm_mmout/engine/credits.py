"""Back-pressure at admission: a request takes a credit before it enters the engine and gives it back at its end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Credits:
    """A budget of requests and bytes that are in flight, used from one thread (the event loop's, or that of ``LLM``).

    A request that alone is larger than the budget is admitted when nothing else is in flight. Waiting requests are
    admitted in the order in which they came.

    Args:
        count: requests in flight at most.
        nbytes: bytes of input in flight at most.

    """

    def __init__(self, count: int, nbytes: int) -> None:
        self.count = count
        self.nbytes = nbytes
        self.used_count = 0
        self.used_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def try_take(self, nbytes: int) -> bool:
        """Take a credit if there is one and nobody waits for it."""
        if self._waiting or not self._fits(nbytes):
            return False
        self._take(nbytes)
        return True

    def give(self, nbytes: int) -> None:
        """Give a credit back."""
        self.used_count -= 1
        self.used_bytes -= nbytes
        self._admit()

    @asynccontextmanager
    async def held(self, nbytes: int) -> AsyncIterator[None]:
        """Wait for a credit, hold it, and give it back."""
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
            elif not admitted.cancelled():  # admitted and cancelled in the same turn of the loop
                self.give(nbytes)
            raise

    def _admit(self) -> None:
        while self._waiting and (self._waiting[0][1].done() or self._fits(self._waiting[0][0])):
            nbytes, admitted = self._waiting.popleft()
            if not admitted.done():
                self._take(nbytes)
                admitted.set_result(None)

    def _fits(self, nbytes: int) -> bool:
        fits = self.used_count < self.count and self.used_bytes + nbytes <= self.nbytes
        return fits or self.used_count == 0

    def _take(self, nbytes: int) -> None:
        self.used_count += 1
        self.used_bytes += nbytes
