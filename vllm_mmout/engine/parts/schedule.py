"""Schedule: which part of which request goes next, what has failed and what has ended.

It neither waits nor calls: `LLM.generate` and `AsyncLLM.generate` ask for a `Turn`, do what it says, and are woken.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from vllm_mmout.engine import wire
from vllm_mmout.engine.request.request import PartInput, Request
from vllm_mmout.engine.request_output import MultimodalRequestOutput, Progress

if TYPE_CHECKING:
    from vllm_mmout.engine.parts.budgets import TileBudget
    from vllm_mmout.engine.parts.fan_out import FanOut
    from vllm_mmout.engine.parts.parts_request import PartedRequest

PATIENCE_S = 0.5
"""Seconds that a tile waits for others at most; a source that is slower than this is not waited for."""
SHARE_BESIDE_SINGLES = 4
"""Where single requests come, a batch has this part of a full one: a step that runs is one that they wait for."""
_TICK_S = 1.0
"""Seconds after which runs are looked at though nothing was heard of them."""


@dataclass(eq=False)
class Run:
    """A request of many parts, such as a scene of tiles, from its admission to its result."""

    request_id: str
    request: PartedRequest
    fan_out: FanOut
    limit_s: float  # that a processor may work on one part
    told: bool = field(default=False, init=False)  # whether a turn has said that it failed

    @cached_property
    def _mark(self) -> dict[str, Any]:
        return wire.mark(self.request.tile_params)

    @property
    def progress(self) -> Progress:
        """How far it is."""
        return Progress(self.fan_out.done, self.fan_out.total)

    def part_request(self, part: PartInput, mark: list[int], request_id: str) -> Request:
        """Return the engine's request of a part that is sent in the batch with this `Batch.mark`."""
        sent = part.without_prompt()
        return Request(
            self.request.tile_params,
            request_id,
            traced=None if self.fan_out.traced is None else self.fan_out.traced.of_tile(part.index),
            prompt=part.prompt,
            mark={**self._mark, wire.BATCH: mark},
            pooling=part.pooling,
            finish=self.request.tile_finish(self.fan_out, sent),
            run=self,
            part=sent,
        )

    def answered(self, part: PartInput, answer: MultimodalRequestOutput | BaseException) -> None:
        """The engine's answer to a part, whose output has been handed on already; a failure is the run's."""
        error = answer if isinstance(answer, BaseException) else answer.error
        if error is not None:
            self.fan_out.failed(part, error)

    def result(self) -> MultimodalRequestOutput:
        """The outcome of a run that has ended, which is the caller's from now on."""
        error = self.fan_out.error
        outputs = self.request.outputs(self.fan_out.outcome()) if error is None else None
        return MultimodalRequestOutput(
            self.request_id,
            outputs,
            [],
            0,
            finished=True,
            error=error,
            progress=self.progress,
            assumed=self.request.assumed,
        )


R = TypeVar("R", bound=Run)


@dataclass(eq=False)
class Batch(Generic[R]):
    """Parts that are sent together, each with its run."""

    parts: list[tuple[R, PartInput]]
    number: int = field(default_factory=count().__next__)

    @property
    def mark(self) -> list[int]:
        """What the engine's core is told: which batch, of how many."""
        return [self.number, len(self.parts)]


class Gathering(Generic[R]):
    """The parts of all runs that are ready and not sent."""

    def __init__(self, size: int, budget: TileBudget, engines: int) -> None:
        self._size = size
        self._engines = engines
        self._budget = budget
        self._runs: list[R] = []
        self._ready: deque[tuple[R, PartInput]] = deque()
        self._since = 0.0

    def add(self, run: R) -> None:
        """Take the parts of a run, too."""
        self._runs.append(run)

    def remove(self, run: R) -> None:
        """Take no more of a run, and send none."""
        if run in self._runs:
            self._runs.remove(run)

    @property
    def waits(self) -> bool:
        """Whether parts are held."""
        return bool(self._ready)

    def batches(self, *, idle: int | None = None) -> list[Batch[R]]:
        """What is to be sent now; with ``idle``, a small batch for each of so many engines and no more."""
        most = self._size if idle is None else max(1, self._size // SHARE_BESIDE_SINGLES)
        if not self._ready:
            self._since = time.monotonic()
        for run in self._runs:
            self._ready += [(run, part) for part in run.fan_out.take()]
        self._ready = deque((run, part) for run, part in self._ready if run in self._runs and not run.fan_out.stopped)
        batches: list[Batch[R]] = []
        while self._ready and (idle is None or len(batches) < idle):
            runs = [*(run for run, _ in self._ready), *(run for run in self._runs if run.fan_out.reading)]
            room = min(self._budget.room(run.fan_out.nbytes) for run in runs)
            size = min(most, max(1, room // self._engines))  # so that each engine may have a batch
            late = time.monotonic() - self._since > PATIENCE_S
            if len(self._ready) < size and not late and any(run.fan_out.reading for run in self._runs):
                break
            batches.append(Batch([self._ready.popleft() for _ in range(min(size, len(self._ready)))]))
            self._since = time.monotonic()
        return batches


@dataclass(slots=True)
class Turn(Generic[R]):
    """What is to be done now, in this order."""

    failed: list[R] = field(default_factory=list)
    """Runs whose parts in the engine nobody waits for any more; each is named once."""
    ended: list[R] = field(default_factory=list)
    """Runs whose outcome is known; the schedule knows them no more."""
    batches: list[Batch[R]] = field(default_factory=list)


class Schedule(Generic[R]):
    """The runs of the engines of a frontend; used from one thread."""

    def __init__(self, size: int, budget: TileBudget, most: int, *, engines: int = 1) -> None:
        self.budget = budget
        self.running: list[R] = []
        self.waiting: deque[R] = deque()
        self._most = most
        self._gathering: Gathering[R] = Gathering(size, budget, engines)
        self._given_up: deque[R] = deque()

    @property
    def room(self) -> int:
        """How many more would start in the next turn; negative where some wait."""
        return self._most - len(self.running) - len(self.waiting)

    @property
    def wait_s(self) -> float:
        """Seconds after which a turn is due though nobody has said that there is something to do."""
        return PATIENCE_S if self._gathering.waits else _TICK_S

    def add(self, run: R) -> None:
        """Take a run in."""
        if self.room < 1:
            run.request.pause()
        self.waiting.append(run)

    def remove(self, run: R) -> None:
        """Forget a run, wherever it is."""
        self._gathering.remove(run)
        for runs in (runs for runs in (self.running, self.waiting) if run in runs):
            runs.remove(run)

    def give_up(self, run: R) -> None:
        """Have the next turn look at a run that was stopped; at one that waits it does not look otherwise."""
        self._given_up.append(run)

    def turn(self, *, idle: int | None = None) -> Turn[R]:
        """See how the runs are, start those that there is room for, and gather what is to be sent.

        ``idle`` is the number of engines that have no part to work on, where parts go behind single requests: small
        batches then go to those engines alone. None: full batches, one behind the other.
        """
        turn: Turn[R] = Turn()
        given_up = [run for run in self._given_up if run in self.waiting]
        self._given_up.clear()
        for run in [*self.running, *given_up]:
            try:
                run.fan_out.check_time(run.limit_s)
            except Exception as error:  # noqa: BLE001 - of a result that is closed: whatever it is, it is this run's
                run.fan_out.stop(error)
            if run.fan_out.error is not None and not run.told:
                run.told = True
                turn.failed.append(run)
            if run.fan_out.finished or (run.fan_out.stopped and run in self.waiting):
                self.remove(run)
                turn.ended.append(run)
        while self.waiting and len(self.running) < self._most:
            run = self.waiting.popleft()
            self.running.append(run)
            self._gathering.add(run)
            with suppress(Exception):  # no thread to spare: the run has failed with it
                run.fan_out.start()
        turn.batches = self._gathering.batches(idle=idle)
        return turn
