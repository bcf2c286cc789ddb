"""Gathering: tiles go to the engine by the batch, so that its steps are full.

An engine that is faster than the files are read would run each tile alone as soon as it comes. Tiles are therefore held
until there are as many as a step has requests, and sent together. What the engine's core gets of such a batch it waits
for (`vllm_mmout.engine.core`).
"""

from __future__ import annotations

import time
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from vllm_mmout.engine.fan_out import FanOut
    from vllm_mmout.engine.part_input import PartInput
    from vllm_mmout.engine.tile_budget import TileBudget

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
