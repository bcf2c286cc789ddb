"""Queue from the threads that decode a processor's tiles to the thread that joins them.

It is filled block by block and emptied part by part.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from vllm_mmout.engine.trace import add_stage, seconds_on_files

if TYPE_CHECKING:
    from vllm_mmout.processors.part import Part


class StoppedError(BaseException):
    """Exception that ends a processor's ``assemble`` if the request stops. ``except Exception`` does not catch it."""


class TiledRequest(Protocol):
    """Protocol of a tiled request, with the members that its `Lane` (queue of decoded tiles) uses."""

    total: int

    @property
    def stopped(self) -> bool:
        """Whether the request failed or was aborted."""

    def count_joined(self) -> None:
        """Update the number of tiles that every processor has added to its result."""


class Lane:
    """Queue of a processor's decoded tiles. Iterating over the queue yields the tiles in the order of arrival."""

    def __init__(self, processor_name: str, request: TiledRequest) -> None:
        self.processor_name = processor_name
        self.result: Any = None
        """Joined result of the processor, or None before it is finished and after `take_result`."""
        self.busy_since: float | None = None
        """Time when the processor began to join a tile, or None while it waits and after the last tile."""
        self.joined = 0
        """Number of tiles that the processor has joined."""
        self.joined_at = 0.0
        """Time when the latest tile was joined, in seconds of ``time.monotonic``."""
        self._request = request
        self._queue: queue.SimpleQueue[Sequence[Part] | None] = queue.SimpleQueue()
        self._taken = 0
        self._block: Sequence[Part] = ()
        self._parts: Iterator[Part] = iter(())
        """Tiles of the current block that the processor has not fetched yet."""
        self._block_since = 0.0

    def put(self, block: Sequence[Part]) -> None:
        """Add a block of decoded tiles. May be called from any thread."""
        self._queue.put(block)

    def stop(self) -> None:
        """Stop the thread that waits for a tile, after the request was stopped."""
        self._queue.put(None)

    def take_result(self) -> Any:
        """Return the result, and drop the reference to it. The caller must close the result."""
        result, self.result = self.result, None
        return result

    def close(self) -> None:
        """Drop the result, and remove its files."""
        result = self.take_result()
        if hasattr(result, "close"):
            result.close()

    def __iter__(self) -> Lane:
        return self

    def __next__(self) -> Part:
        if self.busy_since is not None:
            self._count(1)
        if (part := next(self._parts, None)) is None or self._request.stopped:
            self._parts = iter(self._next_block())
            part = next(self._parts)
        self.busy_since = time.monotonic()
        return part

    def blocks(self) -> Iterator[Sequence[Part]]:
        """Yield the decoded tiles in blocks of several tiles, as they were queued."""
        with suppress(StopIteration):
            while True:
                block = self._next_block()
                yield block
                self._count(len(block))

    def _count(self, parts: int) -> None:
        self.joined += parts
        self._request.count_joined()

    def _next_block(self) -> Sequence[Part]:
        self.busy_since = None
        if self._block:
            self._trace(self._block)
        self._block, self._parts = (), iter(())
        if self._taken and self._taken == self._request.total:
            raise StopIteration
        arrived = self._queue.get()
        if arrived is None or self._request.stopped:
            self._queue.put(None)  # for a processor that swallows the error and asks for another part
            raise StoppedError
        self._taken += len(arrived)
        self._block, self.busy_since = arrived, time.monotonic()
        self._block_since = self.busy_since
        return arrived

    def _trace(self, block: Sequence[Part]) -> None:
        """Record two durations in the trace file: blending a block of tiles, and writing the blended pixels.

        Blending and writing alternate, but are shown one after the other.
        """
        self.joined_at = now = time.monotonic()
        writing = now - seconds_on_files()
        for name, began, ended in (("blend", self._block_since, writing), ("write", writing, now)):
            add_stage(name, began, ended, tile=block[0].index, tiles=len(block), processor=self.processor_name)
