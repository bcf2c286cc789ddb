"""Run: one call of ``LLM.generate``."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from vllm.exceptions import VLLMClientError
from vllm.pooling_params import PoolingParams

from vllm_mmout.engine import marker
from vllm_mmout.engine.parts.parts_request import Driver, PartedRequest
from vllm_mmout.engine.parts.queues import PATIENCE_S, Gathering
from vllm_mmout.engine.request.alarm import Alarm
from vllm_mmout.engine.request.budgets import Credits, TileBudget
from vllm_mmout.engine.request.decode import ADMISSION, Admission, as_it_is
from vllm_mmout.engine.request.inputs import Prepared, prepare
from vllm_mmout.engine.request_output import MultimodalRequestOutput, Progress
from vllm_mmout.errors import MMOutError

if TYPE_CHECKING:
    from vllm import LLM
    from vllm.lora.request import LoRARequest
    from vllm.outputs import PoolingRequestOutput, RequestOutput

    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.engine.parts.fan_out import FanOut
    from vllm_mmout.engine.parts.parts_request import PartInput
    from vllm_mmout.engine.request.decode import Finish
    from vllm_mmout.engine.request.llm import Bar
    from vllm_mmout.engine.request.llm_engine import BoundLLMEngine
    from vllm_mmout.params import OutputParams

_LOOKS_AHEAD = 4
"""Scenes that are opened and put off in one turn, while others run."""
_TICK_S = 1.0
"""Seconds after which scenes are looked at though nothing was heard of them."""


class Run:
    """One call of ``generate``: feeds a window of requests, never the whole list first."""

    def __init__(self, llm: LLM, binding: Binding, wanted: list[Wanted], bar: Bar) -> None:
        self.llm = llm
        self.engine = cast("BoundLLMEngine", llm.llm_engine)
        self.binding = binding
        self.wanted = wanted
        self.bar = bar
        self.credits = Credits(binding.max_in_flight, binding.settings.max_in_flight_bytes)
        self.budget = TileBudget(binding.max_tiles, binding.settings.max_tile_bytes)
        self.done: list[MultimodalRequestOutput | None] = [None] * len(wanted)
        self.waiting = deque(range(len(wanted)))
        self.later: deque[tuple[int, PartedRequest]] = deque()
        """Scenes that wait for others to end, by place."""
        self.prepared: Prepared | PartedRequest | None = None
        """The first of those that wait, while it waits for a credit."""
        self.scenes: list[SceneRun] = []
        self.gathering: Gathering[SceneRun] = Gathering(binding.max_num_seqs, self.budget)
        self.alarm = Alarm(self.engine)
        self.in_flight: dict[str, InFlight] = {}
        """By external id."""
        self.adding = Admission(as_it_is)
        """Of the request that was added last; an interrupt may meet it before it is among those in flight."""

    def results(self) -> list[MultimodalRequestOutput]:
        """Run all to the end; an exception of the caller's own leaves nothing behind."""
        try:
            while self.waiting or self.later or self.in_flight or self.scenes:
                self.alarm.clear()
                self._tend_scenes()
                self._feed()
                self._wait()
        except BaseException:
            self._abandon()
            raise
        return [result for result in self.done if result is not None]

    def _feed(self) -> None:
        """Send what may be sent now."""
        for batch in self.gathering.batches():
            for run, part in batch.tiles:
                self._add_tile(run, part, batch.mark)
        self._start_later()
        put_off = 0
        while self.waiting and put_off < _LOOKS_AHEAD:
            place = self.waiting[0]
            self.prepared = self.prepared or self._prepare(place)
            if isinstance(self.prepared, PartedRequest):
                if self._room:
                    self._start_scene(place, self.prepared)
                elif not self.prepared.can_wait:
                    break  # all such would be held open, pictures as arrays
                else:
                    self.prepared.pause()
                    self.later.append((place, self.prepared))
                    put_off += 1
            elif self.prepared is not None:
                if not self.credits.try_take(self.prepared.nbytes):
                    break
                self._add(place, self.prepared)
            self.prepared = None
            self.waiting.popleft()

    def _start_later(self) -> None:
        """Start scenes that had to wait for others."""
        while self.later and self._room:
            self._start_scene(*self.later[0])
            self.later.popleft()

    @property
    def _room(self) -> bool:
        return len(self.scenes) < self.binding.settings.max_scenes

    def _wait(self) -> None:
        """Let the engine work, or wait for the threads of scenes."""
        if not self.in_flight:
            if self.scenes:
                self.alarm.wait(PATIENCE_S if self.gathering.waits else _TICK_S)
            return
        if not self.scenes:
            self._collect(self.engine.step())
            return
        self.alarm.stepping = True
        try:
            if not self.alarm.rung:
                self._collect(self.engine.step())
        finally:
            self.alarm.stepping = False

    def _tend_scenes(self) -> None:
        """See how the scenes are; one that has ended gets its result."""
        for run in list(self.scenes):
            fan_out = run.fan_out
            fan_out.check_time(self.binding.settings.decode_timeout_s)
            if fan_out.total and not run.counted:
                run.counted = True
                self.bar.add_scene(fan_out.total)
            news, run.shown = fan_out.done - run.shown, fan_out.done
            if news:
                self.bar.update_scene(news, news / fan_out.total * run.scene.pixels)
            if fan_out.error is not None and not run.aborted:
                self._abort(entry for entry in self.in_flight.values() if entry.run is run)
                self.in_flight = {key: entry for key, entry in self.in_flight.items() if entry.run is not run}
                self._collect(self.engine.output_processor.take_ready())  # its tiles that nobody waits for any more
                run.aborted = True
            if fan_out.finished:
                run.scene.close()
                self.scenes.remove(run)
                self.gathering.remove(run)
                self._finish(run.place, _outcome(run), max(fan_out.total, 1) - run.shown)

    def _prepare(self, place: int) -> Prepared | PartedRequest | None:
        """Read or open an input; what is wrong with it is its own result."""
        want = self.wanted[place]
        try:
            return prepare(self.binding, want.data, want.params)
        except MMOutError as error:
            self._finish(place, MultimodalRequestOutput(f"input-{place}", None, [], 0, finished=True, error=error))
            return None

    def _start_scene(self, place: int, scene: PartedRequest) -> None:
        request_id = str(next(self.llm.request_counter))
        fan_out = scene.fan_out(Driver(self.budget, self.alarm.ring, request_id=request_id))
        run = SceneRun(place, request_id, scene, fan_out)
        self.scenes.append(run)
        self.gathering.add(run)
        with self.engine.mmout.interrupts.held_back():
            fan_out.start()

    def _add(self, place: int, prepared: Prepared) -> None:
        mark = marker.mark(self.wanted[place].params)
        request_id = str(next(self.llm.request_counter))
        try:
            self._send(request_id, place, prepared.prompt, mark, prepared.finish, nbytes=prepared.nbytes)
        except (MMOutError, VLLMClientError, ValueError) as error:  # ValueError: of what vLLM renders itself
            self.credits.give(prepared.nbytes)
            self._finish(place, MultimodalRequestOutput(request_id, None, [], 0, finished=True, error=error))

    def _add_tile(self, run: SceneRun, part: PartInput, batch: list[int]) -> None:
        request_id = str(next(self.llm.request_counter))
        sent = part.sent()
        finish = run.scene.tile_finish(run.fan_out, sent)
        mark = marker.mark(run.scene.tile_params, batch)
        try:
            self._send(request_id, run.place, part.prompt, mark, finish, run=run, part=sent)
        except (MMOutError, VLLMClientError, ValueError) as error:
            run.fan_out.failed(part, error)

    def _send(
        self,
        request_id: str,
        place: int,
        prompt: Any,
        mark: dict[str, Any],
        finish: Finish,
        *,
        nbytes: int = 0,
        run: SceneRun | None = None,
        part: PartInput | None = None,
    ) -> None:
        """Add a request to the engine; a tile after the single inputs."""
        want = self.wanted[place]
        own = part.pooling if part is not None else None
        pooling = marker.marked(own or PoolingParams(task=self.llm.pooling_task), mark)
        admission = self.adding = Admission(finish)
        token = ADMISSION.set(admission)
        priority = want.priority + (run is not None)
        try:
            self.engine.add_request(request_id, prompt, pooling, lora_request=want.lora_request, priority=priority)
        finally:
            ADMISSION.reset(token)
            if admission.internal_id is not None:
                self.in_flight[request_id] = InFlight(place, nbytes, admission.internal_id, run, part)

    def _collect(self, outputs: Sequence[RequestOutput | PoolingRequestOutput[Any]]) -> None:
        for output in outputs:
            entry = self.in_flight.pop(output.request_id, None)
            if entry is None or not isinstance(output, MultimodalRequestOutput):
                continue
            if entry.run is None or entry.part is None:
                self.credits.give(entry.nbytes)
                self._finish(entry.place, output)
            elif output.error is not None:
                entry.run.fan_out.failed(entry.part, output.error)

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
        for run in self.scenes:
            run.fan_out.stop()
        for scene in (self.prepared, *(scene for _, scene in self.later)):
            if isinstance(scene, PartedRequest):
                scene.close()
        try:
            self._abort(self.in_flight.values(), self.adding.internal_id)
            self.engine.output_processor.take_ready()
        finally:
            for run in self.scenes:
                run.fan_out.join_threads()
                run.fan_out.close()
                run.scene.close()


def _outcome(run: SceneRun) -> MultimodalRequestOutput:
    result = MultimodalRequestOutput(run.request_id, None, [], 0, finished=True)
    result.progress = Progress(run.fan_out.done, run.fan_out.total)
    result.error = run.fan_out.error
    if result.error is None:
        result.outputs = run.scene.outputs(run.fan_out.outcome())
    return result


@dataclass(slots=True)
class Wanted:
    """One input of a call and what was asked for it."""

    data: Any
    params: OutputParams
    priority: int
    lora_request: LoRARequest | None


@dataclass(slots=True)
class SceneRun:
    """A scene, or another request of many parts, whose tiles are in flight."""

    place: int
    request_id: str
    scene: PartedRequest
    fan_out: FanOut
    shown: int = 0
    """Tiles that the bar has counted."""
    aborted: bool = False
    counted: bool = False
    """Whether the bar has its number of tiles."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """A request between admission and delivery."""

    place: int
    nbytes: int
    internal_id: str
    run: SceneRun | None = None
    """The scene that it is a tile of."""
    part: PartInput | None = None
