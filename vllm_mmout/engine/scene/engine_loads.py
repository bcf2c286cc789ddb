"""Choose the engine for each block of tiles, by the number of tiles that each engine still has to compute."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

AHEAD = 2
"""Number of steps for which an engine gets requests in advance. With 2, the requests of the next step arrive while the
engine computes the current step.
"""


@dataclass(slots=True)
class Load:
    """Amount of work that was sent to one engine and is not answered yet, in tiles and in engine steps."""

    tiles: int = 0
    """Number of unanswered tiles. Any other request that the engine has not answered counts as one tile."""
    steps: float = 0.0
    """Number of engine steps that the unanswered work takes. A block of tiles counts as 1 step.

    Any other request counts as a fraction of a step, because the engine computes several such requests in one step.
    """
    since: float = 0.0
    """Time when the engine began its current work, in seconds of ``EngineLoads.clock``.

    This is the time of the engine's latest answer. If the engine was idle after that answer, it is the time when the
    next request was sent.
    """


@dataclass(slots=True)
class EngineLoads:
    """Counter of the tiles in flight in each engine, which selects the engine for further tiles. Not thread-safe.

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

    def __post_init__(self) -> None:
        self.loads = [Load() for _ in range(self.count)]
        self._next = self.first

    def has_room(self, *, gives_way: bool = False) -> bool:
        """Return whether at least one engine can take more tiles.

        ``gives_way`` is True while requests for small inputs, which are not cut into tiles, arrive. Only idle engines
        can take tiles then.
        """
        return any(load.steps < AHEAD and not (gives_way and load.tiles) for load in self.loads)

    def take(self, tiles: int, *, block: bool) -> int:
        """Choose the engine with the fewest tiles in flight, add ``tiles`` to its count, and return its index.

        Engines with equally few tiles take turns.
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

    def give(self, engine: int, tiles: int, *, block: bool) -> float:
        """Stop counting ``tiles`` tiles as in flight in an engine, because they were answered or aborted.

        Return the seconds since the engine's answer before, or since it began to work.
        """
        load, now = self.loads[engine], self.clock()
        load.tiles -= tiles
        load.steps = load.steps - self._steps(block) if load.tiles else 0.0  # 0 without the rounding errors of the sum
        seconds, load.since = now - load.since, now
        return seconds

    def _steps(self, block: bool) -> float:  # noqa: FBT001 - named by its callers
        return 1.0 if block else 1.0 / self.step
