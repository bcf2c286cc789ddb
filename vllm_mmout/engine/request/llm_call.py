"""Call: one call of ``LLM.generate``, the synchronous driver of the schedule."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from vllm.exceptions import VLLMClientError
from vllm.pooling_params import PoolingParams
from vllm.v1.engine import EngineCoreOutputs

from vllm_mmout.engine import wire
from vllm_mmout.engine.parts.budgets import Credits, TileBudget
from vllm_mmout.engine.parts.parts_request import Driver, PartedRequest, Prepared
from vllm_mmout.engine.parts.schedule import Run, Schedule
from vllm_mmout.engine.request.decode import Admission, as_it_is, carrying
from vllm_mmout.engine.request.inputs import prepare
from vllm_mmout.engine.request_output import MultimodalRequestOutput
from vllm_mmout.errors import MMOutError

if TYPE_CHECKING:
    from vllm import LLM
    from vllm.outputs import PoolingRequestOutput, RequestOutput

    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.engine.parts.parts_request import PartInput
    from vllm_mmout.engine.request.llm import Bar, Wanted
    from vllm_mmout.engine.request.llm_engine import BoundLLMEngine

_LOOKS_AHEAD = 4
"""Scenes that are opened and put off in one turn, while others run."""
_REFUSALS = (MMOutError, VLLMClientError, ValueError)
"""What is wrong with a request that is added; a ValueError of what vLLM renders itself."""


class Call:
    """One call of ``generate``: feeds a window of requests, never the whole list first."""

    def __init__(self, llm: LLM, binding: Binding, wanted: list[Wanted], bar: Bar) -> None:
        settings = binding.settings
        self.llm = llm
        self.engine = cast("BoundLLMEngine", llm.llm_engine)
        self.binding = binding
        self.wanted = wanted
        self.bar = bar
        self.credits = Credits(binding.max_in_flight, settings.max_in_flight_bytes)
        budget = TileBudget(binding.max_tiles, settings.max_tile_bytes)
        self.schedule: Schedule[CallRun] = Schedule(binding.max_num_seqs, budget, settings.max_scenes)
        self.done: list[MultimodalRequestOutput | None] = [None] * len(wanted)
        self.waiting = deque(range(len(wanted)))
        self.prepared: Prepared | PartedRequest | None = None
        """The first of those that wait, while it waits for a credit."""
        self.next_id = ""
        """Its name."""
        self.runs: list[CallRun] = []
        """Those that have no result yet."""
        self.alarm = Alarm(self.engine)
        self.in_flight: dict[str, InFlight] = {}
        self.adding = Admission(as_it_is)
        """Of the request that was added last; an interrupt may meet it before it is among those in flight."""

    def results(self) -> list[MultimodalRequestOutput]:
        """Run all to the end; an exception of the caller's own leaves nothing behind."""
        try:
            with self.engine.mmout.watched():
                while self.waiting or self.in_flight or self.runs:
                    self.alarm.clear()
                    self._turn()
                    self._feed()
                    self._wait()
        except BaseException:
            self._abandon()
            raise
        return [result for result in self.done if result is not None]

    def _turn(self) -> None:
        """Do what the schedule says."""
        if not self.runs:
            return
        with self.engine.mmout.held_back():
            turn = self.schedule.turn()
        for run in [*self.schedule.running, *turn.ended]:
            run.show(self.bar)
        for run in turn.failed:
            self._abort(entry for entry in self.in_flight.values() if entry.run is run)
            self.in_flight = {key: entry for key, entry in self.in_flight.items() if entry.run is not run}
            self._collect(self.engine.output_processor.take_ready())  # its parts that nobody waits for any more
        for run in turn.ended:
            run.request.close()
            self._finish(run.place, run.result(), max(run.fan_out.total, 1) - run.shown)
            self.runs.remove(run)
        for batch in turn.batches:
            for run, part in batch.parts:
                try:
                    self._send(self._next_id(), run.place, run.prepared(part, batch.mark), run, part.sent())
                except _REFUSALS as error:
                    run.answered(part, error)

    def _feed(self) -> None:
        """Send the single inputs that may be sent now, and have the others scheduled."""
        put_off = 0
        while self.waiting and put_off < _LOOKS_AHEAD:
            place = self.waiting[0]
            if self.prepared is None:
                self.next_id = self._next_id()
                self.prepared = self._prepare(place)
            if isinstance(self.prepared, PartedRequest):
                room = self.schedule.room > 0
                if not room and not self.prepared.can_wait:
                    break  # all such would be held open, pictures as arrays
                self._schedule(place, self.prepared)
                if room:
                    self.alarm.ring()
                else:
                    put_off += 1
            elif self.prepared is not None:
                if not self.credits.try_take(self.prepared.nbytes):
                    break
                try:
                    self._send(self.next_id, place, self.prepared)
                except _REFUSALS as error:
                    self.credits.give(self.prepared.nbytes)
                    self._fail(place, error)
            self.prepared = None
            self.waiting.popleft()

    def _prepare(self, place: int) -> Prepared | PartedRequest | None:
        """Read or open an input; what is wrong with it is its own result."""
        want = self.wanted[place]
        try:
            return prepare(self.binding, want.data, want.params, self.binding.traced(self.next_id))
        except MMOutError as error:
            self._fail(place, error)
            return None

    def _schedule(self, place: int, request: PartedRequest) -> None:
        name = self.next_id
        driver = Driver(self.schedule.budget, self.alarm.ring, request_id=name, traced=self.binding.traced(name))
        run = CallRun(name, request, request.fan_out(driver), self.binding.settings.decode_timeout_s, place)
        self.runs.append(run)
        self.schedule.add(run)

    def _send(
        self,
        request_id: str,
        place: int,
        prepared: Prepared,
        run: CallRun | None = None,
        part: PartInput | None = None,
    ) -> None:
        """Add a request to the engine; a part after the single inputs."""
        want = self.wanted[place]
        pooling = wire.marked(prepared.pooling or PoolingParams(task=self.llm.pooling_task), prepared.mark)
        admission = self.adding = Admission(prepared.finish, prepared.traced, prepared.assumed)
        priority = want.priority + (run is not None)
        try:
            with carrying(admission):
                self.engine.add_request(
                    request_id, prepared.prompt, pooling, lora_request=want.lora_request, priority=priority
                )
        finally:
            if admission.internal_id is not None:
                self.in_flight[request_id] = InFlight(place, prepared.nbytes, admission.internal_id, run, part)

    def _wait(self) -> None:
        """Let the engine work, or wait for the threads of runs."""
        if not self.in_flight:
            if self.runs:
                self.alarm.wait(self.schedule.wait_s)
            return
        if not self.runs:
            self._collect(self.engine.step())
            return
        self.alarm.stepping = True
        try:
            if not self.alarm.rung:
                self._collect(self.engine.step())
        finally:
            self.alarm.stepping = False

    def _collect(self, outputs: Sequence[RequestOutput | PoolingRequestOutput[Any]]) -> None:
        for output in outputs:
            entry = self.in_flight.pop(output.request_id, None)
            if entry is None or not isinstance(output, MultimodalRequestOutput):
                continue
            if entry.run is None or entry.part is None:
                self.credits.give(entry.nbytes)
                self._finish(entry.place, output)
            else:
                entry.run.answered(entry.part, output)

    def _next_id(self) -> str:
        return str(next(self.llm.request_counter))

    def _fail(self, place: int, error: Exception) -> None:
        self._finish(place, MultimodalRequestOutput(self.next_id, None, [], 0, finished=True, error=error))

    def _finish(self, place: int, result: MultimodalRequestOutput, counts: int = 1) -> None:
        self.done[place] = result
        self.bar.update(counts)

    def _abort(self, entries: Iterable[InFlight], also: str | None = None) -> None:
        ids = {entry.internal_id for entry in entries}  # once each: vLLM fails on a second
        if also is not None:
            ids.add(also)
        self.engine.abort_request(list(ids), internal=True)

    def _abandon(self) -> None:
        """End all that was begun, after an exception."""
        for run in self.runs:
            run.fan_out.stop()
        if isinstance(self.prepared, PartedRequest):
            self.prepared.close()
        try:
            self._abort(self.in_flight.values(), self.adding.internal_id)
            self.engine.output_processor.take_ready()
        finally:
            for run in self.runs:
                run.fan_out.join_threads()
                run.fan_out.close()
                run.request.close()


@dataclass(eq=False)
class CallRun(Run):
    """A run of a call."""

    place: int
    shown: int = 0
    counted: bool = False
    """Whether the bar has its number of parts."""

    def show(self, bar: Bar) -> None:
        """Have the bar count what is new."""
        fan_out = self.fan_out
        if fan_out.total and not self.counted:
            self.counted = True
            bar.add_scene(fan_out.total)
        news, self.shown = fan_out.done - self.shown, fan_out.done
        if news:
            bar.update_scene(news, news / fan_out.total * self.request.pixels)


@dataclass(frozen=True, slots=True)
class InFlight:
    """A request between admission and delivery."""

    place: int
    nbytes: int
    internal_id: str
    run: CallRun | None
    part: PartInput | None


@dataclass(slots=True)
class Alarm:
    """Lets threads of scenes wake the caller's, also one that waits for an engine in processes of its own.

    A tile that is ready would else wait until the batch that runs has ended.
    """

    engine: BoundLLMEngine
    stepping: bool = False
    _silent: threading.Lock = field(default_factory=threading.Lock)
    """Held until somebody rings. Of C: an interrupt inside ``threading.Event`` would leave its lock held for good."""

    def __post_init__(self) -> None:
        self.clear()

    @property
    def rung(self) -> bool:
        """Whether it was rung and nobody has answered."""
        return not self._silent.locked()

    def clear(self) -> None:
        """Answer it."""
        self._silent.acquire(blocking=False)

    def wait(self, timeout_s: float) -> None:
        """Wait until it is rung, and answer it."""
        self._silent.acquire(timeout=timeout_s)

    def ring(self) -> None:
        """Say that there is something to do."""
        if not self.rung:
            with suppress(RuntimeError):  # another thread was faster
                self._silent.release()
        if not self.stepping:
            return
        self.stepping = False
        self.engine.output_processor.poke()
        answers = getattr(self.engine.engine_core, "outputs_queue", None)
        if answers is not None:
            answers.put_nowait(EngineCoreOutputs())  # an answer with nothing in it ends the step
