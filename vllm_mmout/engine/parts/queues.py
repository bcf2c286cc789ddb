"""The queues that parts pass: into the engine by the batch, and for each pick into its processor."""

from __future__ import annotations

import queue
import time
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from vllm_mmout.engine.parts.fan_out import FanOut
    from vllm_mmout.engine.parts.parts_request import PartInput
    from vllm_mmout.engine.request.budgets import TileBudget
    from vllm_mmout.processors.base import Part

PATIENCE_S = 0.5
"""Seconds that a tile waits for others at most; a source that is slower than this is not waited for."""

_numbers = count()


class HasFanOut(Protocol):
    """Whatever runs a scene."""

    @property
    def fan_out(self) -> FanOut:
        """Makes the tiles."""


Run = TypeVar("Run", bound=HasFanOut)


class Gathering(Generic[Run]):
    """The tiles of all scenes that are ready and not sent; used from one thread.

    Args:
        size: requests of a full step.
        budget: of all scenes; a batch is never larger than what it lets in.

    """

    def __init__(self, size: int, budget: TileBudget) -> None:
        self._size = size
        self._budget = budget
        self._runs: list[Run] = []
        self._ready: deque[tuple[Run, PartInput]] = deque()
        self._since = 0.0

    def add(self, run: Run) -> None:
        """Take the tiles of a scene, too."""
        self._runs.append(run)

    def remove(self, run: Run) -> None:
        """Take no more of a scene, and send none."""
        if run in self._runs:
            self._runs.remove(run)

    @property
    def waits(self) -> bool:
        """Whether tiles are held."""
        return bool(self._ready)

    def batches(self) -> list[Batch[Run]]:
        """What is to be sent now."""
        if not self._ready:
            self._since = time.monotonic()
        for run in self._runs:
            self._ready += [(run, part) for part in run.fan_out.take()]
        self._ready = deque((run, part) for run, part in self._ready if run in self._runs and not run.fan_out.stopped)
        batches = []
        while self._ready:
            size = min(self._size, *(self._budget.room(nbytes) for nbytes in self._sizes()))
            late = time.monotonic() - self._since > PATIENCE_S
            if len(self._ready) < size and not late and any(run.fan_out.reading for run in self._runs):
                break
            batches.append(Batch([self._ready.popleft() for _ in range(min(size, len(self._ready)))]))
            self._since = time.monotonic()
        return batches

    def _sizes(self) -> set[int]:
        """Bytes of the tiles that may be part of a batch."""
        return {run.fan_out.nbytes for run, _ in self._ready} | {
            run.fan_out.nbytes for run in self._runs if run.fan_out.reading
        }


class Batch(Generic[Run]):
    """Tiles that are sent together.

    Args:
        tiles: each with its scene.

    """

    def __init__(self, tiles: list[tuple[Run, PartInput]]) -> None:
        self.tiles = tiles
        self.number = next(_numbers)

    @property
    def mark(self) -> list[int]:
        """What the engine's core is told: which batch, of how many."""
        return [self.number, len(self.tiles)]


class StoppedError(BaseException):
    """Ends a processor's ``assemble`` from outside; no author's ``except Exception`` meets it."""


class Joined(Protocol):
    """The request whose parts are joined, a `FanOut`."""

    total: int
    """Number of parts; 0 until it is known."""

    @property
    def stopped(self) -> bool:
        """Whether it failed or was aborted."""

    def joined(self, part: Part) -> None:
        """A pick is done with a part."""


class Lane:
    """Iterates over the parts of one pick as they come, in the thread that joins them.

    Args:
        pick: name of the processor.
        fan_out: the request; told of each part when the next one is asked for.

    """

    def __init__(self, pick: str, fan_out: Joined) -> None:
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
