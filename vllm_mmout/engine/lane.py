"""Lane: the parts of one pick on their way into its processor."""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm_mmout.engine.fan_out import FanOut
    from vllm_mmout.processors.base import Part


class StoppedError(BaseException):
    """Ends a processor's ``assemble`` from outside; no author's ``except Exception`` meets it."""


class Lane:
    """Iterates over the parts of one pick as they come, in the thread that joins them.

    Args:
        pick: name of the processor.
        fan_out: the request; told of each part when the next one is asked for.

    """

    def __init__(self, pick: str, fan_out: FanOut) -> None:
        self.pick = pick
        self.result: Any = None
        """What the processor made of them, until it is handed over."""
        self.busy_since: float | None = None
        """Since when the processor works on one part; None while it waits for one, and after the last."""
        self._fan_out = fan_out
        self._queue: queue.SimpleQueue[Part | None] = queue.SimpleQueue()
        self._taken = 0
        self._last: Part | None = None

    def put(self, part: Part) -> None:
        """Hand a part over; from any thread."""
        self._queue.put(part)

    def stop(self) -> None:
        """Let whoever waits for a part see that the request has ended."""
        self._queue.put(None)

    def handed_over(self) -> Any:
        """The result, which is the caller's from now on."""
        result, self.result = self.result, None
        return result

    def close(self) -> None:
        """Forget the result, and remove what it has on disk."""
        result = self.handed_over()
        if hasattr(result, "close"):
            result.close()

    def __iter__(self) -> Lane:
        return self

    def __next__(self) -> Part:
        self.busy_since = None
        last, self._last = self._last, None
        if last is not None:
            self._fan_out.joined(last)
        if self._taken and self._taken == self._fan_out.total:
            raise StopIteration
        part = self._queue.get()
        if part is None or self._fan_out.stopped:
            self._queue.put(None)  # for whoever swallows the error and asks again
            raise StoppedError
        self._taken += 1
        self._last = part
        self.busy_since = time.monotonic()
        return part
