"""``LLM`` on a bound engine: ``generate`` returns decoded objects."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm
from vllm.exceptions import VLLMClientError
from vllm.pooling_params import PoolingParams
from vllm.v1.engine.llm_engine import LLMEngine

from vllm_mmout.engine import marker
from vllm_mmout.engine.credits import Credits
from vllm_mmout.engine.decode import as_it_is
from vllm_mmout.engine.inputs import Prepared, check_targets, prepare
from vllm_mmout.engine.interrupts import Interrupts
from vllm_mmout.engine.request_output import MultimodalRequestOutput
from vllm_mmout.engine.routed import ADMISSION, Admission, RoutedOutputProcessor
from vllm_mmout.errors import MMOutError, OptionError
from vllm_mmout.params import OutputParams

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.outputs import PoolingRequestOutput, RequestOutput

    from vllm_mmout.engine.binding import Binding


class BoundLLMEngine(LLMEngine):
    """vLLM's synchronous engine whose outputs are decoded."""

    output_processor: RoutedOutputProcessor
    mmout_interrupts: Interrupts

    def step(self) -> list[RequestOutput | PoolingRequestOutput[Any]]:
        """As vLLM's; with decodes pending and nothing left in the engine it waits for the decoders.

        It never raises for a request: a failed one comes back with its ``error``.
        """
        router = self.output_processor
        if not router.request_states and (router.pending or router.ready):
            return [*router.wait_ready()]
        with self.mmout_interrupts.held_back():
            outputs = super().step()
        return [*outputs, *router.take_ready()]

    def add_request(self, *args: Any, **kwargs: Any) -> str:
        """As vLLM's."""
        with self.mmout_interrupts.held_back():
            return super().add_request(*args, **kwargs)

    def abort_request(self, request_ids: list[str], internal: bool = False) -> None:  # noqa: FBT001, FBT002 - as vLLM's
        """As vLLM's."""
        with self.mmout_interrupts.held_back():
            super().abort_request(request_ids, internal)


@dataclass(slots=True)
class Wanted:
    """One input of a call and what was asked for it."""

    data: Any
    params: OutputParams
    priority: int
    lora_request: LoRARequest | None


@dataclass(frozen=True, slots=True)
class InFlight:
    """A request between admission and delivery."""

    place: int
    nbytes: int
    internal_id: str


class LLMGenerate:
    """The methods of ``LLM`` that a bound engine replaces; mixed into the class of the bound object alone."""

    llm_engine: BoundLLMEngine
    request_counter: Any
    pooling_task: Any

    def generate(
        self,
        inputs: Any,
        params: OutputParams | Sequence[OutputParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., tqdm[Any]] = True,
        priority: int | Sequence[int] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[MultimodalRequestOutput]:
        """Run the model on inputs and decode what it emits.

        Args:
            inputs: one input or a list of them. An input is a path or ``file://`` URL, bytes or a file object of an
                image file, a PIL image, an array or tensor [bands, height, width], or vLLM's prompt dict.
            params: options, one for all inputs or one each.
            use_tqdm: whether to show a progress bar, or what makes one.
            priority: priority of the requests, the lower the earlier (with the priority scheduling policy).
            lora_request: LoRA adapter, one for all or one each.

        Returns:
            One result an input, in their order. In a list the place of a failed input holds a result whose ``error`` is
            the exception and whose ``outputs`` raises it.

        Raises:
            OptionError: the params do not fit the model or the inputs.
            MMOutError: the only input (not in a list) failed.

        """
        single = not isinstance(inputs, list | tuple)
        wanted = _pair([inputs] if single else list(inputs), params, priority, lora_request)
        binding = self.llm_engine.output_processor.binding
        for options in {id(want.params): want.params for want in wanted}.values():
            binding.check_params(options)
        check_targets((want.data, want.params) for want in wanted)
        progress = _progress(use_tqdm, len(wanted))
        try:
            results = _Run(self, binding, wanted, progress).results()
        finally:
            progress.close()
        if single and results[0].error is not None:
            raise results[0].error
        return results


class _Run:
    """One call of ``generate``: feeds a window of requests, never the whole list first."""

    def __init__(self, llm: LLMGenerate, binding: Binding, wanted: list[Wanted], progress: tqdm[Any]) -> None:
        self.llm = llm
        self.engine = llm.llm_engine
        self.binding = binding
        self.wanted = wanted
        self.progress = progress
        self.credits = Credits(binding.max_in_flight, binding.settings.max_in_flight_bytes)
        self.done: list[MultimodalRequestOutput | None] = [None] * len(wanted)
        self.in_flight: dict[str, InFlight] = {}
        """By external id."""
        self.adding = Admission(as_it_is)
        """Of the request that was added last; an interrupt may meet it before it is among those in flight."""

    def results(self) -> list[MultimodalRequestOutput]:
        """Run all to the end; an exception of the caller's own leaves nothing behind."""
        waiting = deque(range(len(self.wanted)))
        prepared: Prepared | None = None
        try:
            while waiting or self.in_flight:
                while waiting:
                    place = waiting[0]
                    prepared = prepared or self._prepare(place)
                    if prepared is not None:
                        if not self.credits.try_take(prepared.nbytes):
                            break
                        self._add(place, prepared)
                        prepared = None
                    waiting.popleft()
                if self.in_flight:
                    self._collect(self.engine.step())
        except BaseException:
            added = {entry.internal_id for entry in self.in_flight.values()}  # once each: vLLM fails on a second
            if self.adding.internal_id is not None:
                added.add(self.adding.internal_id)
            self.engine.abort_request(list(added), internal=True)
            self.engine.output_processor.take_ready()
            raise
        return [result for result in self.done if result is not None]

    def _prepare(self, place: int) -> Prepared | None:
        """Read an input; what is wrong with it is its own result."""
        want = self.wanted[place]
        try:
            return prepare(self.binding, want.data, want.params)
        except MMOutError as error:
            self._finish(place, MultimodalRequestOutput(f"input-{place}", None, [], 0, finished=True, error=error))
            return None

    def _add(self, place: int, prepared: Prepared) -> None:
        want = self.wanted[place]
        request_id = str(next(self.llm.request_counter))
        pooling = PoolingParams(task=self.llm.pooling_task, extra_kwargs=marker.mark(want.params))
        admission = self.adding = Admission(prepared.finish)
        token = ADMISSION.set(admission)
        try:
            self.engine.add_request(
                request_id, prepared.prompt, pooling, lora_request=want.lora_request, priority=want.priority
            )
        except (MMOutError, VLLMClientError, ValueError) as error:  # ValueError: of what vLLM renders itself
            self.credits.give(prepared.nbytes)
            self._finish(place, MultimodalRequestOutput(request_id, None, [], 0, finished=True, error=error))
        finally:
            ADMISSION.reset(token)
            if admission.internal_id is not None:
                self.in_flight[request_id] = InFlight(place, prepared.nbytes, admission.internal_id)

    def _collect(self, outputs: Sequence[RequestOutput | PoolingRequestOutput[Any]]) -> None:
        for output in outputs:
            entry = self.in_flight.pop(output.request_id, None)
            if entry is None or not isinstance(output, MultimodalRequestOutput):
                continue
            self.credits.give(entry.nbytes)
            self._finish(entry.place, output)

    def _finish(self, place: int, result: MultimodalRequestOutput) -> None:
        self.done[place] = result
        self.progress.update(1)


def _pair(
    inputs: list[Any],
    params: OutputParams | Sequence[OutputParams] | None,
    priority: int | Sequence[int] | None,
    lora_request: LoRARequest | Sequence[LoRARequest | None] | None,
) -> list[Wanted]:
    columns = [
        _spread("params", OutputParams() if params is None else params, len(inputs)),
        _spread("priority", 0 if priority is None else priority, len(inputs)),
        _spread("lora_request", lora_request, len(inputs)),
    ]
    wanted = [Wanted(data, *row) for data, *row in zip(inputs, *columns, strict=True)]
    for want in wanted:
        if not isinstance(want.params, OutputParams):
            raise OptionError(
                f"params must be OutputParams, got {type(want.params).__name__}; this model's output is decoded, not"
                " sampled. LLM.encode gives its raw tensors"
            )
    return wanted


def _spread(name: str, value: Any, count: int) -> list[Any]:
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise OptionError(f"{count} inputs and {len(value)} {name}; give one for all, or one for each input")
    return list(value)


def _progress(use_tqdm: Any, total: int) -> tqdm[Any]:
    make = use_tqdm if callable(use_tqdm) else tqdm
    return make(total=total, desc="Inputs", unit="input", dynamic_ncols=True, disable=not use_tqdm)
