"""EngineLoads, which chooses the engine for each block of tiles, and how many tiles the block may have."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

BLOCK_S = 0.05
"""Time in seconds that an engine may work on a block. Other requests that arrive meanwhile wait this long."""
ANSWER_BYTES = 64 << 20
"""Largest planned size of an engine's answer to a block, in bytes."""
AHEAD = 2
"""Number of full steps that are sent to an engine at a time: it computes one while the next arrives."""
SHARE_BESIDE_SINGLES = 4
"""Divisor of the block size while requests without tiles arrive: they must wait until the running step ends."""
_MEMORY = 0.7
"""Factor that reduces the weight of earlier measurements when another is added."""


@dataclass(slots=True)
class Load:
    """Work in flight in one engine."""

    tiles: int = 0
    """Number of tiles and other parts."""
    steps: float = 0.0
    """Number of steps that the work needs. Each block needs a step, and other parts share steps."""
    since: float = 0.0
    """Time of the engine's latest answer, or of the start of its work, in seconds of ``clock``."""


@dataclass(slots=True)
class EngineLoads:
    """Counter of the tiles in flight in each engine. Not thread-safe.

    The time between an engine's answers gives the seconds for a tile, and their size gives the bytes of its result.
    Blocks start with one tile and at most double from one answer to the next.

    Args:
        count: number of engines.
        step: number of requests that an engine computes in one step.
        first: index of the engine that gets the first block. Frontends that share engines begin with different
            engines.
        clock: function that returns the time in seconds.

    """

    count: int
    step: int
    first: int = 0
    clock: Callable[[], float] = time.monotonic
    loads: list[Load] = field(init=False)
    _next: int = field(init=False)
    _largest: int = 0
    """Largest number of tiles of a block that was answered."""
    _seconds: float = 0.0
    _bytes: float = 0.0
    _tiles: float = 0.0

    def __post_init__(self) -> None:
        self.loads = [Load() for _ in range(self.count)]
        self._next = self.first

    @property
    def idle(self) -> bool:
        """Whether at least one engine has 0 tiles in flight."""
        return any(not load.tiles for load in self.loads)

    def block_size(self, *, gives_way: bool) -> int:
        """Return the largest number of tiles for the next block. If it ``gives_way`` to other requests, it is less."""
        most = max(1, 2 * self._largest)
        if self._tiles:
            most = min(most, int(BLOCK_S * self._tiles / max(self._seconds, 1e-9)))
            most = min(most, int(ANSWER_BYTES * self._tiles / max(self._bytes, 1.0)))
        return max(1, most // SHARE_BESIDE_SINGLES if gives_way else most)

    def has_room(self, *, gives_way: bool = False) -> bool:
        """Return whether an engine may get another block or part. If it ``gives_way``, only idle engines may."""
        return self.idle if gives_way else min(load.steps for load in self.loads) < AHEAD

    def take(self, tiles: int, *, block: bool) -> int:
        """Choose the engine for a ``block`` of tiles or for a single part, count the tiles, and return its index.

        The engine with the fewest tiles in flight is chosen. Engines with equally few tiles take turns.
        """
        order = sorted(range(self.count), key=lambda index: (index - self._next) % self.count)
        engine = min(order, key=lambda index: self.loads[index].tiles)
        self._next = engine + 1
        load = self.loads[engine]
        if not load.tiles:
            load.since = self.clock()
        load.tiles += tiles
        load.steps += self._steps(block)
        return engine

    def give(self, engine: int, tiles: int, *, block: bool, nbytes: int = 0) -> None:
        """Remove tiles that were answered or aborted from the count of an engine.

        ``nbytes`` is the size of the answer to a block, or 0 if there was no result; only results are measured.
        """
        load, now = self.loads[engine], self.clock()
        load.tiles -= tiles
        load.steps -= self._steps(block)
        if block and nbytes:
            self._seconds = _MEMORY * self._seconds + now - load.since
            self._bytes = _MEMORY * self._bytes + nbytes
            self._tiles = _MEMORY * self._tiles + tiles
            self._largest = max(self._largest, tiles)
        load.since = now
        if not load.tiles:
            load.steps = 0.0  # without the rounding errors of the sum

    def _steps(self, block: bool) -> float:  # noqa: FBT001 - named by its callers
        return 1.0 if block else 1.0 / self.step
