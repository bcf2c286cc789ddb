"""Schedule, which chooses the next blocks and parts of all runs, and finds the runs that have failed or ended.

It neither waits nor calls an engine. `LLM.generate` and `AsyncLLM.generate` request a `Turn`, perform its actions, and
are woken when another turn is due.
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
"""Time after which the runs are checked even if no thread has woken the driver, in seconds."""


@dataclass(frozen=True, slots=True)
class Sending:
    """Block or part to send to an engine."""

    run: Run
    part: PartInput
    engine: int


@dataclass(slots=True)
class Turn:
    """Next actions of the driver, in the order of the fields."""

    failed: list[Run] = field(default_factory=list)
    """Runs that have failed since the last turn, whose parts in the engine are to be aborted."""
    ended: list[Run] = field(default_factory=list)
    """Runs that have succeeded or failed, and were removed from the schedule."""
    sendings: list[Sending] = field(default_factory=list)
    """Blocks and parts to send."""


class Schedule:
    """Schedule of the runs of a frontend. Not thread-safe."""

    def __init__(self, loads: EngineLoads, budget: TileBudget, most: int) -> None:
        """Set up a schedule that runs up to ``most`` runs at a time."""
        self.loads = loads
        self.budget = budget
        self.running: list[Run] = []
        self.waiting: deque[Run] = deque()
        self._most = most
        self._ready: deque[tuple[Run, PartInput]] = deque()
        """Blocks and parts that are not sent yet, in the order in which they became ready."""
        self._given_up: deque[Run] = deque()
        self._told: set[Run] = set()
        """Running runs whose failure a turn has already reported."""

    @property
    def room(self) -> int:
        """Number of further runs that could start in the next turn, or a negative number if runs wait."""
        return self._most - len(self.running) - len(self.waiting)

    wait_s = _TICK_S
    """Time after which a turn is due even if no thread has woken the driver, in seconds."""

    def add(self, run: Run) -> None:
        """Add a run. If it cannot start in the next turn, pause it."""
        if self.room < 1:
            run.pause()
        self.waiting.append(run)

    def remove(self, run: Run) -> None:
        """Remove a run, whether it runs or waits."""
        self._told.discard(run)
        for runs in (runs for runs in (self.running, self.waiting) if run in runs):
            runs.remove(run)

    def give_up(self, run: Run) -> None:
        """Let the next turn end a stopped run that waits. Turns otherwise check only runs that have started."""
        self._given_up.append(run)

    def turn(self, *, gives_way: bool = False) -> Turn:
        """Check all runs, start waiting runs if there is room, and choose the blocks and parts to send.

        While single requests arrive, the schedule ``gives_way``: only idle engines get blocks, and smaller ones.
        """
        turn = Turn()
        given_up = [run for run in self._given_up if run in self.waiting]
        self._given_up.clear()
        for run in [*self.running, *given_up]:
            try:
                run.check_time(run.limit_s)
            except Exception as error:  # noqa: BLE001 - closing an author's result may raise anything
                run.stop(error)
            if run.error is not None and run not in self._told:
                self._told.add(run)
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

    def _next(self, *, gives_way: bool) -> Sending:
        """Return the next block or part to send. The rest of a block that is too large stays first in the queue."""
        run, part = self._ready.popleft()
        part, rest = part.cut(self.loads.block_size(gives_way=gives_way))
        if rest is not None:
            self._ready.appendleft((run, rest))
        return Sending(run, part, self.loads.take(len(part), block=part.is_block))
