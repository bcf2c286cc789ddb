"""Lane: passes the parts of a processor's result from the threads that decode them to the thread that joins them."""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING, Any, Protocol

from vllm_mmout.stopwatch import FILES

if TYPE_CHECKING:
    from vllm_mmout.engine.trace import Traced
    from vllm_mmout.processors.base import Part


class StoppedError(BaseException):
    """Ends a processor's ``assemble`` from outside. An author's ``except Exception`` does not catch it."""


class Whole(Protocol):
    """The request whose parts a lane holds."""

    total: int
    traced: Traced | None

    @property
    def stopped(self) -> bool:
        """Whether the request failed or was aborted."""

    def joined(self, part: Part) -> None:
        """Count a part that one processor has joined."""


class Lane:
    """Iterates over the parts of one processor as they come, in the thread that joins them."""

    def __init__(self, pick: str, whole: Whole) -> None:
        self.pick = pick
        self.result: Any = None
        """Result of the processor, until its owner takes it."""
        self.busy_since: float | None = None
        """Time when the processor began to work on a part, or None while it waits and after the last part."""
        self.joined_at = 0.0
        """Time when the newest part of a traced request was joined."""
        self._whole = whole
        self._queue: queue.SimpleQueue[Part | None] = queue.SimpleQueue()
        self._taken = 0
        self._last: Part | None = None

    def put(self, part: Part) -> None:
        """Add a part; from any thread."""
        self._queue.put(part)

    def stop(self) -> None:
        """Wake the thread that waits for a part, since the request has ended."""
        self._queue.put(None)

    def take_result(self) -> Any:
        """Return the result, which the caller owns from now on."""
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
        since, self.busy_since = self.busy_since, None
        last, self._last = self._last, None
        if last is not None:
            if since is not None and self._whole.traced is not None:
                self._trace(self._whole.traced.of_tile(last.index), since)
            self._whole.joined(last)
        if self._taken and self._taken == self._whole.total:
            raise StopIteration
        part = self._queue.get()
        if part is None or self._whole.stopped:
            self._queue.put(None)  # for code that swallows the error and asks again
            raise StoppedError
        self._taken += 1
        self._last = part
        self.busy_since = time.monotonic()
        return part

    def _trace(self, traced: Traced, since: float) -> None:
        """Trace a part that is joined. Its blocks were written in between; the trace shows them last."""
        watch = FILES.get()
        self.joined_at = now = time.monotonic()
        written = 0.0 if watch is None else watch.take()
        traced.stage("blend", since, now - written, processor=self.pick)
        traced.stage("write", now - written, now, processor=self.pick)
