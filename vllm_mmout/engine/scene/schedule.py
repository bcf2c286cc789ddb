"""Schedule: chooses the next parts of all runs, and finds the runs that have failed or ended.

It neither waits nor calls an engine: `LLM.generate` and `AsyncLLM.generate` ask for a `Turn`, do what it says, and are
woken when there is more to do.
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
"""Longest time in seconds that a tile waits for others to fill a step."""
SHARE_BESIDE_SINGLES = 4
"""Divisor of a full batch while single requests come, which wait for the step that runs."""
_TICK_S = 1.0
"""Seconds after which runs are looked at though nothing was heard of them."""


@dataclass(eq=False)
class Batch:
    """Parts that are sent together, each with its run."""

    parts: list[tuple[Run, PartInput]]
    number: int = field(default_factory=count().__next__)

    @property
    def mark(self) -> list[int]:
        """The batch's number and size, which the engine's core reads."""
        return [self.number, len(self.parts)]


class Gathering:
    """The parts of all runs that are ready and not sent."""

    def __init__(self, size: int, budget: TileBudget, engines: int) -> None:
        self._size = size
        self._engines = engines
        self._budget = budget
        self._runs: list[Run] = []
        self._ready: deque[tuple[Run, PartInput]] = deque()
        self._since = 0.0

    def add(self, run: Run) -> None:
        """Gather the parts of a run, too."""
        self._runs.append(run)

    def remove(self, run: Run) -> None:
        """Stop gathering parts of a run, and drop those not sent yet."""
        if run in self._runs:
            self._runs.remove(run)

    @property
    def waits(self) -> bool:
        """Whether parts are held."""
        return bool(self._ready)

    def batches(self, *, idle: int | None = None) -> list[Batch]:
        """Return the batches to send now. With ``idle``, return at most that many batches, and smaller ones."""
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
    """The next actions of the driver, in this order."""

    failed: list[Run] = field(default_factory=list)
    """Runs that have failed since the last turn, whose parts in the engine are to be aborted."""
    ended: list[Run] = field(default_factory=list)
    """Runs whose outcome is known, and which the schedule has forgotten."""
    batches: list[Batch] = field(default_factory=list)


class Schedule:
    """The runs of the engines of a frontend. Used from one thread."""

    def __init__(self, size: int, budget: TileBudget, most: int, *, engines: int = 1) -> None:
        self.budget = budget
        self.running: list[Run] = []
        self.waiting: deque[Run] = deque()
        self._most = most
        self._gathering = Gathering(size, budget, engines)
        self._given_up: deque[Run] = deque()
        self._told: set[Run] = set()
        """Running runs whose failure a turn has told."""

    @property
    def room(self) -> int:
        """Number of runs that would start in the next turn; negative if some wait."""
        return self._most - len(self.running) - len(self.waiting)

    @property
    def wait_s(self) -> float:
        """Seconds after which a turn is due though nobody has woken the driver."""
        return PATIENCE_S if self._gathering.waits else _TICK_S

    def add(self, run: Run) -> None:
        """Accept a run."""
        if self.room < 1:
            run.pause()
        self.waiting.append(run)

    def remove(self, run: Run) -> None:
        """Forget a run, wherever it is."""
        self._gathering.remove(run)
        self._told.discard(run)
        for runs in (runs for runs in (self.running, self.waiting) if run in runs):
            runs.remove(run)

    def give_up(self, run: Run) -> None:
        """Have the next turn look at a stopped run, which it would not do if the run waits."""
        self._given_up.append(run)

    def turn(self, *, idle: int | None = None) -> Turn:
        """Look at all runs, start waiting runs if there is room, and gather the parts to send.

        ``idle`` is the number of engines without a part while single requests come: small batches then go to those
        engines alone. None stands for full batches, one behind the other.
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
            with suppress(Exception):  # the system cannot start a thread, and the run has failed
                run.start()
        turn.batches = self._gathering.batches(idle=idle)
        return turn
