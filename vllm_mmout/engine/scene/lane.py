"""Lane, the queue between the threads that decode the parts of a processor's result and the thread that joins them."""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING, Any, Protocol

from vllm_mmout.engine.trace import add_stage, seconds_on_files

if TYPE_CHECKING:
    from vllm_mmout.processors.part import Part


class StoppedError(BaseException):
    """Exception that ends a processor's ``assemble`` from outside. ``except Exception`` does not catch it."""


class Whole(Protocol):
    """Request whose parts a lane passes on."""

    total: int

    @property
    def stopped(self) -> bool:
        """Whether the request failed or was aborted."""

    def joined(self, part: Part) -> None:
        """Count a part that a processor has joined."""


class Lane:
    """Iterator over the parts of a processor in the order of arrival, for the thread that joins them."""

    def __init__(self, pick: str, whole: Whole) -> None:
        self.pick = pick
        self.result: Any = None
        """Result of the processor, until `take_result`."""
        self.busy_since: float | None = None
        """Time when the processor began to work on a part, or None while it waits and after the last part."""
        self.joined_at = 0.0
        """Time when the latest part was joined."""
        self._whole = whole
        self._queue: queue.SimpleQueue[Part | None] = queue.SimpleQueue()
        self._taken = 0
        self._last: Part | None = None

    def put(self, part: Part) -> None:
        """Add a part. May be called from any thread."""
        self._queue.put(part)

    def stop(self) -> None:
        """Wake the thread that waits for a part, after the request was stopped."""
        self._queue.put(None)

    def take_result(self) -> Any:
        """Return the result and drop it here. The caller must close it."""
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
            if since is not None:
                self._trace(last.index, since)
            self._whole.joined(last)
        if self._taken and self._taken == self._whole.total:
            raise StopIteration
        part = self._queue.get()
        if part is None or self._whole.stopped:
            self._queue.put(None)  # for a processor that swallows the error and asks for another part
            raise StoppedError
        self._taken += 1
        self._last = part
        self.busy_since = time.monotonic()
        return part

    def _trace(self, index: int, since: float) -> None:
        """Record the stages of a joined part. Its blocks were written in between; the trace shows the writing last."""
        self.joined_at = now = time.monotonic()
        writing = now - seconds_on_files()
        add_stage("blend", since, writing, tile=index, processor=self.pick)
        add_stage("write", writing, now, tile=index, processor=self.pick)
