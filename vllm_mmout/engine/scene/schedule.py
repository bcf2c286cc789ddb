"""Decide which scenes run, and which of their tiles are sent to which engine next.

A plugin's request of many prompts runs like a scene, and each of its prompts like a tile.

It neither waits nor calls an engine. `LLM.generate` and `AsyncLLM.generate` call `Schedule.turn`, and perform the
actions that it returns. They call it again when a thread wakes them, or after `Schedule.wait_s`.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_mmout.engine.request.request import PartInput
    from vllm_mmout.engine.scene.budgets import TileBudget
    from vllm_mmout.engine.scene.engine_loads import EngineLoads
    from vllm_mmout.engine.scene.run import Run

_TICK_S = 1.0
"""Longest time in seconds between two calls of `Schedule.turn`, which checks all scenes."""


@dataclass(slots=True)
class Turn:
    """Result of `Schedule.turn`. It lists the actions that the caller must perform, in the order of the fields."""

    failed: list[Run] = field(default_factory=list)
    """Scenes that have failed since the previous call of `Schedule.turn`. Their requests must be aborted in the
    engines."""
    ended: list[Run] = field(default_factory=list)
    """Scenes that have ended, successfully or not, and were removed from the schedule."""
    sendings: list[tuple[Run, PartInput, int]] = field(default_factory=list)
    """Blocks of tiles that must be sent to engines now, as (scene, block of tiles, index of the engine)."""


class Schedule:
    """Schedule of all scenes of a process. The schedule limits how many scenes run at a time. Not thread-safe."""

    def __init__(self, loads: EngineLoads, budget: TileBudget, most: int) -> None:
        self.loads = loads
        self.budget = budget
        self.running: list[Run] = []
        self.waiting: deque[Run] = deque()
        self._most = most
        self._ready: deque[tuple[Run, PartInput]] = deque()
        """Queue of the blocks of tiles that wait to be sent to an engine, each with its scene."""
        self._given_up: deque[Run] = deque()
        self._reported: set[Run] = set()
        """Scenes that an earlier call of `turn` has listed in `Turn.failed`, and that are still in the schedule."""

    @property
    def room(self) -> int:
        """Number of further scenes that can start without waiting. The number is negative if scenes must wait."""
        return self._most - len(self.running) - len(self.waiting)

    wait_s = _TICK_S
    """Time in seconds until `turn` must be called again, unless a thread asks for an earlier call."""

    def add(self, run: Run) -> None:
        """Add a scene to the schedule. While the scene waits to start, its input may be closed."""
        if self.room < 1:
            run.pause()
        self.waiting.append(run)

    def remove(self, run: Run) -> None:
        """Remove a running or waiting scene from the schedule."""
        self._reported.discard(run)
        for runs in (runs for runs in (self.running, self.waiting) if run in runs):
            runs.remove(run)

    def give_up(self, run: Run) -> None:
        """Give up a stopped scene. The next call of `turn` removes the scene if the scene has not started.

        A scene that has started is removed by the first call of `turn` after the scene has finished.
        """
        self._given_up.append(run)

    def answered(self, run: Run, part: PartInput, engine: int = 0, nbytes: int = 0) -> None:
        """Record that ``engine`` has answered a request for tiles with ``nbytes`` bytes. 0 bytes mean an error."""
        seconds = self.loads.give(engine, len(part), block=part.is_block)
        if part.is_block and nbytes:
            run.pace.add(len(part), seconds, nbytes)

    def turn(self, *, gives_way: bool = False, holds: bool = False) -> Turn:
        """Check the time limits of the scenes, start waiting scenes, and choose the tiles to send to engines next.

        ``gives_way`` is True while requests without tiles arrive. Only idle engines then get blocks, and smaller ones.
        If ``holds`` is True, no blocks are sent.
        """
        turn = Turn()
        given_up = [run for run in self._given_up if run in self.waiting]
        self._given_up.clear()
        for run in [*self.running, *given_up]:
            try:
                run.check_time(run.limit_s)
            except Exception as error:  # noqa: BLE001 - closing an author's result may raise anything
                run.stop(error)
            if run.error is not None and run not in self._reported:
                self._reported.add(run)
                turn.failed.append(run)
            if run.finished or (run.stopped and run in self.waiting):
                self.remove(run)
                turn.ended.append(run)
        while self.waiting and len(self.running) < self._most:
            run = self.waiting.popleft()
            self.running.append(run)
            with suppress(Exception):  # if the system cannot start a thread, `start` has recorded the run's failure
                run.start()
        for run in self.running:
            self._ready += [(run, part) for part in run.take()]
        self._ready = deque((run, part) for run, part in self._ready if run in self.running and not run.stopped)
        while self._ready and not holds and self.loads.has_room(gives_way=gives_way):
            turn.sendings.append(self._next(gives_way=gives_way))
        return turn

    def _next(self, *, gives_way: bool) -> tuple[Run, PartInput, int]:
        """Return the next block of tiles to send, as (scene, block of tiles, index of the engine).

        If the block is too large to be sent at once, its remaining tiles stay first in the queue.
        """
        run, part = self._ready.popleft()
        part, rest = part.cut(run.pace.block_size(gives_way=gives_way))
        if rest is not None:
            self._ready.appendleft((run, rest))
        return run, part, self.loads.take(len(part), block=part.is_block)
