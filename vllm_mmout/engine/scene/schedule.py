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
    """Actions that the caller of `Schedule.turn` must perform, in the order of these fields."""

    failed: list[Run] = field(default_factory=list)
    """Scenes that have failed since the last `Schedule.turn`. The caller must abort their requests in the engines."""
    ended: list[Run] = field(default_factory=list)
    """Scenes that have succeeded or failed, and were removed from the schedule."""
    sendings: list[tuple[Run, PartInput, int]] = field(default_factory=list)
    """Blocks of tiles to send to engines, as (scene, block of tiles, index of the engine)."""


class Schedule:
    """Schedule of all scenes of a process. It limits how many run at a time, and is not thread-safe."""

    def __init__(self, loads: EngineLoads, budget: TileBudget, most: int) -> None:
        """Set up a schedule that runs at most ``most`` scenes at a time."""
        self.loads = loads
        self.budget = budget
        self.running: list[Run] = []
        self.waiting: deque[Run] = deque()
        self._most = most
        self._ready: deque[tuple[Run, PartInput]] = deque()
        """Queue of the blocks of tiles that are ready to be sent, each with its scene."""
        self._given_up: deque[Run] = deque()
        self._reported: set[Run] = set()
        """Failed scenes that an earlier `Turn` has listed in ``failed``, and that have not ended yet."""

    @property
    def room(self) -> int:
        """Number of further scenes that could start at the next `turn`. It is negative if scenes have to wait."""
        return self._most - len(self.running) - len(self.waiting)

    wait_s = _TICK_S
    """Time in seconds after which `turn` must be called again, if no thread has requested a call earlier."""

    def add(self, run: Run) -> None:
        """Add a scene. If it cannot start at the next `turn`, close its input until it starts."""
        if self.room < 1:
            run.pause()
        self.waiting.append(run)

    def remove(self, run: Run) -> None:
        """Remove a scene, whether it has started or still waits."""
        self._reported.discard(run)
        for runs in (runs for runs in (self.running, self.waiting) if run in runs):
            runs.remove(run)

    def give_up(self, run: Run) -> None:
        """Let the next `turn` end a scene that was stopped, even if the scene has not started."""
        self._given_up.append(run)

    def answered(self, run: Run, part: PartInput, engine: int = 0, nbytes: int = 0) -> None:
        """Record an engine's answer to a block of tiles. ``nbytes`` is its size in bytes, or 0 if the block failed."""
        seconds = self.loads.give(engine, len(part), block=part.is_block)
        if part.is_block and nbytes:
            run.pace.add(len(part), seconds, nbytes)

    def turn(self, *, gives_way: bool = False) -> Turn:
        """Check all scenes, start waiting scenes if fewer than the limit run, and choose the tiles to send next.

        ``gives_way`` is True while requests without tiles arrive. Only idle engines then get blocks, and smaller ones.
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
        while self._ready and self.loads.has_room(gives_way=gives_way):
            turn.sendings.append(self._next(gives_way=gives_way))
        return turn

    def _next(self, *, gives_way: bool) -> tuple[Run, PartInput, int]:
        """Return the next block of tiles to send. If it has too many tiles, the others stay first in the queue."""
        run, part = self._ready.popleft()
        part, rest = part.cut(run.pace.block_size(gives_way=gives_way))
        if rest is not None:
            self._ready.appendleft((run, rest))
        return run, part, self.loads.take(len(part), block=part.is_block)
