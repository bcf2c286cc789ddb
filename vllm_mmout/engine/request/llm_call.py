"""Run the inputs of one call of ``LLM.generate`` in the caller's thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from vllm.exceptions import VLLMClientError

from vllm_mmout.engine.request.input_reading import prepare
from vllm_mmout.engine.request.request import Request, carrying
from vllm_mmout.engine.request_output import MultimodalRequestOutput
from vllm_mmout.engine.scene.budgets import Credits, TileBudget
from vllm_mmout.engine.scene.engine_loads import EngineLoads
from vllm_mmout.engine.scene.run import Run
from vllm_mmout.engine.scene.schedule import Schedule
from vllm_mmout.errors import MMOutError

if TYPE_CHECKING:
    from vllm import LLM
    from vllm.outputs import PoolingRequestOutput, RequestOutput

    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.engine.request.llm_engine import BoundLLMEngine
    from vllm_mmout.engine.request.progress_bar import Bar

_MAX_OPENED_AHEAD = 4
"""Largest number of scenes that are opened ahead of time between two engine steps, while other scenes run."""
_REFUSALS = (MMOutError, VLLMClientError, ValueError)
"""Errors that `LLMEngine.add_request` raises to refuse a request. Such an error fails only the refused request.

vLLM raises ValueError for a prompt that it cannot turn into tokens.
"""


StoreResult: TypeAlias = Callable[[int, "MultimodalRequestOutput"], "MultimodalRequestOutput"]
"""Function that takes the index of an input and the result, and returns the result to keep in memory. The function may
write the pixels to a file."""


class Call:
    """Call of ``LLM.generate``, which sends the engine a few requests at a time rather than the whole list."""

    def __init__(
        self,
        llm: LLM,
        binding: Binding,
        inputs: list[Any],
        requests: list[Request],
        bar: Bar,
        *,
        store_result: StoreResult = lambda _, result: result,
    ) -> None:
        self.llm = llm
        self.engine = cast("BoundLLMEngine", llm.llm_engine)
        self.binding = binding
        self.inputs = inputs
        self.requests = requests
        """Requests in the order of the inputs."""
        self.bar = bar
        self.store_result = store_result
        self.credits = Credits(binding.max_in_flight, binding.settings.max_in_flight_bytes)
        self.done: list[MultimodalRequestOutput | None] = [None] * len(inputs)
        """Results in the order of the inputs, None for an input that is not finished."""
        self.waiting = deque(range(len(inputs)))
        """Indices of the inputs that were not sent to the engine yet."""
        self.prepared: Request | Run | None = None
        """Prepared input that waits until the limits on requests allow sending it. None if no input waits.

        A small input is prepared as a `Request`, and a scene as a `Run`.
        """
        self.runs: list[Run] = []
        """Unfinished requests that are split into parts, such as scenes."""
        self.in_flight: dict[str, Request] = {}
        """Requests that were sent to the engine and are not answered, by id."""
        self.alarm = Alarm(self.engine)

    @cached_property
    def schedule(self) -> Schedule:
        """Schedule that selects which tiles of the running scenes are sent next. Created for the first scene."""
        settings = self.binding.settings
        budget = TileBudget(self.binding.max_tiles, settings.max_tile_bytes)
        return Schedule(EngineLoads(1, self.binding.max_num_seqs), budget, settings.max_scenes)

    def results(self) -> list[MultimodalRequestOutput]:
        """Run all inputs and return their results in order. An exception aborts all requests."""
        with self.engine.mmout.delayed(self.alarm.ring):
            try:
                while self.waiting or self.in_flight or self.runs:
                    self.alarm.clear()
                    self.engine.mmout.deliver()
                    self._turn()
                    self._feed()
                    self._wait()
            except BaseException:
                self._abandon()
                raise
        return [result for result in self.done if result is not None]

    def _turn(self) -> None:
        """Abort failed scenes, store the results of finished scenes, and send the next tiles to the engine."""
        if not self.runs:
            return
        turn = self.schedule.turn()
        for run in [*self.schedule.running, *turn.ended]:
            self.bar.show(run)
        for run in turn.failed:
            parts = [request for request in self.in_flight.values() if request.run is run]
            self._abort(parts)
            for request in parts:
                del self.in_flight[request.request_id]
                if request.part is not None:
                    self.schedule.answered(run, request.part)
            self._collect(self.engine.output_processor.take_ready())  # drops the results of the failed run's parts
        for run in turn.ended:
            run.close()
            self._finish(run.request.place, run.result(), self.bar.uncounted(run))
            self.runs.remove(run)
        for run, part, _ in turn.sendings:
            request = run.part_request(part, self._next_id())
            try:
                self._send(request)
            except _REFUSALS as error:
                run.answered(part, error)
                if request.request_id not in self.in_flight:  # otherwise counted when the run's requests are aborted
                    self.schedule.answered(run, part)

    def _feed(self) -> None:
        """Send small inputs to the engine, and queue scenes, as far as the limits of requests and bytes allow."""
        put_off = 0
        while self.waiting and put_off < _MAX_OPENED_AHEAD:
            self.engine.mmout.deliver()  # reading an input may take long
            request = self.requests[self.waiting[0]]
            if self.prepared is None:
                request.request_id = self._next_id()
                self.prepared = self._prepare(request)
            if isinstance(self.prepared, Run):
                room = self.schedule.room > 0
                if not room and not self.prepared.can_wait:
                    break  # an input that can be read only once would stay open while it waits
                self._schedule(self.prepared)
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
                    if self.in_flight.pop(request.request_id, None) is not None:
                        self._abort([request])  # vLLM had added it in part
                    self.credits.give(request.nbytes)
                    self._fail(request, error)
            self.prepared = None
            self.waiting.popleft()

    def _prepare(self, request: Request) -> Request | Run | None:
        """Read or open the input of a request. If that fails, record the error as the result and return None."""
        try:
            return prepare(self.binding, self.inputs[request.place], request)
        except MMOutError as error:
            self._fail(request, error)
            return None

    def _schedule(self, run: Run) -> None:
        run.attach(self.schedule.budget, self.alarm.ring, limit_s=self.binding.settings.decode_timeout_s)
        self.runs.append(run)
        self.schedule.add(run)

    def _send(self, request: Request) -> None:
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
        """Run a step of the engine. If no request is in the engine, wait until a thread has read or joined a tile."""
        if not self.in_flight:
            if self.runs:
                self.alarm.wait(self.schedule.wait_s)
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
                nbytes = 0 if output.error is not None else request.answer_bytes
                self.schedule.answered(request.run, request.part, nbytes=nbytes)
            else:
                self.credits.give(request.nbytes)
                self._finish(request.place, output)

    def _next_id(self) -> str:
        return str(next(self.llm.request_counter))

    def _fail(self, request: Request, error: Exception) -> None:
        failed = MultimodalRequestOutput(request.request_id, None, [], 0, finished=True, error=error)
        self._finish(request.place, failed)

    def _finish(self, place: int, result: MultimodalRequestOutput, counts: int = 1) -> None:
        self.done[place] = self.store_result(place, result)
        self.bar.update(counts)

    def _abort(self, requests: Iterable[Request]) -> None:
        ids = {request.internal_id for request in requests if request.internal_id}  # vLLM fails on a repeated id
        self.engine.abort_request(list(ids), internal=True)

    def _abandon(self) -> None:
        """Abort all requests and stop all scenes, after an exception."""
        for run in self.runs:
            run.stop()
        if isinstance(self.prepared, Run):
            self.prepared.close()
        try:
            self._abort(self.in_flight.values())
            self.engine.output_processor.take_ready()
        finally:
            for run in self.runs:
                run.join_threads()
                run.discard()
                run.close()


@dataclass(slots=True)
class Alarm:
    """Flag that wakes the thread of ``LLM.generate`` when a tile was read or joined, or when a Ctrl-C came.

    It works even while the thread waits for an engine in another process. Without it, a tile that is ready would wait
    for the end of the running batch.
    """

    engine: BoundLLMEngine
    stepping: bool = False
    """Whether the thread of ``LLM.generate`` runs an engine step, or is about to. `ring` then ends the step early.
    """
    _held_until_ring: threading.Lock = field(default_factory=threading.Lock)
    """Lock that `wait` waits for. `clear` acquires it, and `ring` releases it.

    A ``threading.Event`` cannot be used, because a second Ctrl-C may leave its internal lock held for ever.
    """

    def __post_init__(self) -> None:
        self.clear()

    @property
    def rung(self) -> bool:
        """Whether `ring` was called since the last `clear`."""
        return not self._held_until_ring.locked()

    def clear(self) -> None:
        """Reset the alarm."""
        self._held_until_ring.acquire(blocking=False)

    def wait(self, timeout_s: float) -> None:
        """Wait until `ring` is called, for at most ``timeout_s`` seconds, and reset the alarm."""
        self._held_until_ring.acquire(timeout=timeout_s)

    def ring(self) -> None:
        """Wake the caller's thread. May be called from any thread."""
        if not self.rung:
            with suppress(RuntimeError):  # another thread has released the lock meanwhile
                self._held_until_ring.release()
        if not self.stepping:
            return
        self.stepping = False
        self.engine.wake()
