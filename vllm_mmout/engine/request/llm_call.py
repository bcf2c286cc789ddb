"""Call: one call of ``LLM.generate``, the synchronous driver of the schedule."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from vllm.exceptions import VLLMClientError
from vllm.v1.engine import EngineCoreOutputs

from vllm_mmout.engine.parts.budgets import Credits, TileBudget
from vllm_mmout.engine.parts.parts_request import Driver, PartedRequest
from vllm_mmout.engine.parts.schedule import Run, Schedule
from vllm_mmout.engine.request.inputs import prepare
from vllm_mmout.engine.request.request import Request, carrying
from vllm_mmout.engine.request_output import MultimodalRequestOutput
from vllm_mmout.errors import MMOutError

if TYPE_CHECKING:
    from vllm import LLM
    from vllm.outputs import PoolingRequestOutput, RequestOutput

    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.engine.request.llm import Bar
    from vllm_mmout.engine.request.llm_engine import BoundLLMEngine
    from vllm_mmout.engine.request.request import PartInput

_LOOKS_AHEAD = 4
"""Scenes that are opened and put off in one turn, while others run."""
_REFUSALS = (MMOutError, VLLMClientError, ValueError)
"""What is wrong with a request that is added; a ValueError of what vLLM renders itself."""


class Call:
    """One call of ``generate``: feeds a window of requests, never the whole list first."""

    def __init__(self, llm: LLM, binding: Binding, inputs: list[Any], requests: list[Request], bar: Bar) -> None:
        settings = binding.settings
        self.llm = llm
        self.engine = cast("BoundLLMEngine", llm.llm_engine)
        self.binding = binding
        self.inputs = inputs
        self.requests = requests
        """One an input."""
        self.bar = bar
        self.credits = Credits(binding.max_in_flight, settings.max_in_flight_bytes)
        budget = TileBudget(binding.max_tiles, settings.max_tile_bytes)
        self.schedule: Schedule[CallRun] = Schedule(binding.max_num_seqs, budget, settings.max_scenes)
        self.done: list[MultimodalRequestOutput | None] = [None] * len(inputs)
        self.waiting = deque(range(len(inputs)))
        self.prepared: Request | PartedRequest | None = None
        """The first input that waits, read or opened, while it waits for a credit."""
        self.runs: list[CallRun] = []
        """The runs that have no result yet."""
        self.alarm = Alarm(self.engine)
        self.in_flight: dict[str, Request] = {}
        """The requests that the engine has, by id."""
        self.adding: Request | None = None
        """The request that was added last. An interrupt may come before it is in ``in_flight``."""

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
            self._abort(request for request in self.in_flight.values() if request.run is run)
            self.in_flight = {key: request for key, request in self.in_flight.items() if request.run is not run}
            self._collect(self.engine.output_processor.take_ready())  # its parts that nobody waits for any more
        for run in turn.ended:
            run.request.close()
            self._finish(run.place, run.result(), max(run.fan_out.total, 1) - run.shown)
            self.runs.remove(run)
        for batch in turn.batches:
            for run, part in batch.parts:
                try:
                    self._send(self._part_request(run, part, batch.mark))
                except _REFUSALS as error:
                    run.answered(part, error)

    def _feed(self) -> None:
        """Send the single inputs that may be sent now, and have the others scheduled."""
        put_off = 0
        while self.waiting and put_off < _LOOKS_AHEAD:
            request = self.requests[self.waiting[0]]
            if self.prepared is None:
                request.request_id = self._next_id()
                self.prepared = self._prepare(request)
            if isinstance(self.prepared, PartedRequest):
                room = self.schedule.room > 0
                if not room and not self.prepared.can_wait:
                    break  # all such would be held open, pictures as arrays
                self._schedule(request, self.prepared)
                if room:
                    self.alarm.ring()
                else:
                    put_off += 1
            elif self.prepared is not None:
                if not self.credits.try_take(request.nbytes):
                    break
                try:
                    self._send(request)
                except _REFUSALS as error:
                    self.credits.give(request.nbytes)
                    self._fail(request, error)
            self.prepared = None
            self.waiting.popleft()

    def _prepare(self, request: Request) -> Request | PartedRequest | None:
        """Read or open an input; an input that is refused has its error as its result."""
        try:
            request.traced = self.binding.traced(request.request_id)
            return prepare(self.binding, self.inputs[request.place], request)
        except MMOutError as error:
            self._fail(request, error)
            return None

    def _schedule(self, request: Request, parted: PartedRequest) -> None:
        driver = Driver(self.schedule.budget, self.alarm.ring, request_id=request.request_id, traced=request.traced)
        limit_s = self.binding.settings.decode_timeout_s
        run = CallRun(request.request_id, parted, parted.fan_out(driver), limit_s, request.place)
        self.runs.append(run)
        self.schedule.add(run)

    def _part_request(self, run: CallRun, part: PartInput, mark: list[int]) -> Request:
        """Return the request of a part, which goes behind the single inputs."""
        whole = self.requests[run.place]
        request = run.part_request(part, mark, self._next_id())
        request.lora_request, request.priority = whole.lora_request, whole.priority + 1
        return request

    def _send(self, request: Request) -> None:
        """Add a request to the engine."""
        self.adding = request
        pooling = request.pooling_params(self.llm.pooling_task)
        try:
            with carrying(request):
                self.engine.add_request(
                    request.request_id,
                    request.prompt,
                    pooling,
                    lora_request=request.lora_request,
                    priority=request.priority,
                )
        finally:
            request.prompt = None
            if request.internal_id is not None:
                self.in_flight[request.request_id] = request

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
            request = self.in_flight.pop(output.request_id, None)
            if request is None or not isinstance(output, MultimodalRequestOutput):
                continue
            request.release()
            if isinstance(request.run, Run) and request.part is not None:
                request.run.answered(request.part, output)
            else:
                self.credits.give(request.nbytes)
                self._finish(request.place, output)

    def _next_id(self) -> str:
        return str(next(self.llm.request_counter))

    def _fail(self, request: Request, error: Exception) -> None:
        failed = MultimodalRequestOutput(request.request_id, None, [], 0, finished=True, error=error)
        self._finish(request.place, failed)

    def _finish(self, place: int, result: MultimodalRequestOutput, counts: int = 1) -> None:
        self.done[place] = result
        self.bar.update(counts)

    def _abort(self, requests: Iterable[Request]) -> None:
        ids = {request.internal_id for request in requests if request.internal_id}  # vLLM fails on an id that repeats
        self.engine.abort_request(list(ids), internal=True)

    def _abandon(self) -> None:
        """End all that was begun, after an exception."""
        for run in self.runs:
            run.fan_out.stop()
        if isinstance(self.prepared, PartedRequest):
            self.prepared.close()
        try:
            self._abort([*self.in_flight.values(), *filter(None, [self.adding])])
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
