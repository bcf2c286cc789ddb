"""Schedule, which chooses the next parts of all runs, and finds the runs that have failed or ended.

It neither waits nor calls an engine. `LLM.generate` and `AsyncLLM.generate` request a `Turn`, perform its actions, and
are woken when another turn is due.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_mmout.engine.request.request import PartInput
    from vllm_mmout.engine.scene.budgets import TileBudget
    from vllm_mmout.engine.scene.run import Run

PATIENCE_S = 0.5
"""Longest time that a tile waits for other tiles to fill a step, in seconds."""
SHARE_BESIDE_SINGLES = 4
"""Divisor of the batch size while single requests arrive, because these wait for the running step."""
_TICK_S = 1.0
"""Time after which the runs are checked even if no thread has woken the driver, in seconds."""


@dataclass(eq=False)
class Batch:
    """Batch of parts that are sent together, each with its run."""

    parts: list[tuple[Run, PartInput]]
    number: int = field(default_factory=count().__next__)

    @property
    def mark(self) -> list[int]:
        """Number and size of the batch, which the engine core reads."""
        return [self.number, len(self.parts)]


class Gathering:
    """Collection of the ready parts of all runs that are not sent yet, which forms batches."""

    def __init__(self, size: int, budget: TileBudget, engines: int) -> None:
        self._size = size
        self._engines = engines
        self._budget = budget
        self._runs: list[Run] = []
        self._ready: deque[tuple[Run, PartInput]] = deque()
        self._since = 0.0

    def add(self, run: Run) -> None:
        """Start gathering the parts of a run."""
        self._runs.append(run)

    def remove(self, run: Run) -> None:
        """Stop gathering the parts of a run, and drop its parts that are not sent yet."""
        if run in self._runs:
            self._runs.remove(run)

    @property
    def waits(self) -> bool:
        """Whether parts are held back to fill a batch."""
        return bool(self._ready)

    def batches(self, *, idle: int | None = None) -> list[Batch]:
        """Return the batches to send now. If ``idle`` is given, return at most that many batches, of smaller size."""
        most = self._size if idle is None else max(1, self._size // SHARE_BESIDE_SINGLES)
        if not self._ready:
            self._since = time.monotonic()
        for run in self._runs:
            self._ready += [(run, part) for part in run.take()]
        self._ready = deque((run, part) for run, part in self._ready if run in self._runs and not run.stopped)
        batches: list[Batch] = []
        while self._ready and (idle is None or len(batches) < idle):
            runs = [*(run for run, _ in self._ready), *(run for run in self._runs if run.reading)]
            room = min(self._budget.room(run.nbytes) for run in runs)
            size = min(most, max(1, room // self._engines))  # so that each engine may have a batch
            late = time.monotonic() - self._since > PATIENCE_S
            if len(self._ready) < size and not late and any(run.reading for run in self._runs):
                break
            batches.append(Batch([self._ready.popleft() for _ in range(min(size, len(self._ready)))]))
            self._since = time.monotonic()
        return batches


@dataclass(slots=True)
class Turn:
    """Next actions of the driver, in the order of the fields."""

    failed: list[Run] = field(default_factory=list)
    """Runs that have failed since the last turn, whose parts in the engine are to be aborted."""
    ended: list[Run] = field(default_factory=list)
    """Runs that have succeeded or failed, and were removed from the schedule."""
    batches: list[Batch] = field(default_factory=list)
    """Batches to send."""


class Schedule:
    """Schedule of the runs of a frontend. Not thread-safe."""

    def __init__(self, size: int, budget: TileBudget, most: int, *, engines: int = 1) -> None:
        self.budget = budget
        self.running: list[Run] = []
        self.waiting: deque[Run] = deque()
        self._most = most
        self._gathering = Gathering(size, budget, engines)
        self._given_up: deque[Run] = deque()
        self._told: set[Run] = set()
        """Running runs whose failure a turn has already reported."""

    @property
    def room(self) -> int:
        """Number of further runs that could start in the next turn, or a negative number if runs wait."""
        return self._most - len(self.running) - len(self.waiting)

    @property
    def wait_s(self) -> float:
        """Time after which a turn is due even if no thread has woken the driver, in seconds."""
        return PATIENCE_S if self._gathering.waits else _TICK_S

    def add(self, run: Run) -> None:
        """Add a run. If it cannot start in the next turn, pause it."""
        if self.room < 1:
            run.pause()
        self.waiting.append(run)

    def remove(self, run: Run) -> None:
        """Remove a run, whether it runs or waits."""
        self._gathering.remove(run)
        self._told.discard(run)
        for runs in (runs for runs in (self.running, self.waiting) if run in runs):
            runs.remove(run)

    def give_up(self, run: Run) -> None:
        """Let the next turn end a stopped run that waits. Turns otherwise check only runs that have started."""
        self._given_up.append(run)

    def turn(self, *, idle: int | None = None) -> Turn:
        """Check all runs, start waiting runs if there is room, and gather the parts to send.

        ``idle`` is the number of engines without parts while single requests arrive. Small batches are then sent to
        those engines only. If it is None, full batches are sent without waiting for idle engines.
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
            self._gathering.add(run)
            with suppress(Exception):  # if the system cannot start a thread, `start` has recorded the run's failure
                run.start()
        turn.batches = self._gathering.batches(idle=idle)
        return turn
