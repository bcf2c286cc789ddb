"""Run the steps of an iterative model's requests in a worker. Requests in a batch may be at different steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import torch

from vllm_mmout.engine import wire
from vllm_mmout.errors import InputError, MMOutError, ModelError, message_of, raise_interrupt, type_and_message
from vllm_mmout.log import logger
from vllm_mmout.params import OutputParams
from vllm_mmout.processors.raw import checked_group, each

if TYPE_CHECKING:
    from torch import nn
    from vllm.pooling_params import PoolingParams
    from vllm.v1.pool.metadata import PoolingMetadata, PoolingStates

    from vllm_mmout.models.single_pass import Outcome
    from vllm_mmout.processors.base import Raw

_ATTRIBUTE: Final = "mmout"
"""Name of the attribute that this package adds to vLLM's ``PoolingStates``. The attribute holds an `ActiveRequest`."""

TensorsOrError: TypeAlias = "Mapping[str, torch.Tensor] | MMOutError"
"""Input tensors of a request by name, or the MMOutError of a request whose tensors could not be read."""


@dataclass(slots=True)
class ActiveRequest:
    """State of a running request to a model that computes its result in several steps."""

    state: Any
    """State of the request, as returned by the model's ``begin`` or its last ``step``. An MMOutError if the request
    failed."""
    total_steps: int
    """Number of steps after which the request is finished."""
    preview_steps: Sequence[int] = ()
    """Step numbers after which the client gets a preview. (5, 10) means previews after steps 5 and 10."""
    finished_steps: int = field(default=0, init=False)
    """Number of steps that are finished so far."""

    @property
    def failed(self) -> bool:
        """Whether the request failed. The steps of a failed request are skipped."""
        return isinstance(self.state, MMOutError)


class StepRunner:
    """Runner that calls the model author's ``begin``, ``step`` and ``finish`` for all running requests, in batches.

    If the model raises for several requests, each of them is run again alone, so that one request cannot fail the
    others. A model must therefore not change the states that it receives.
    """

    def __init__(self, model: nn.Module, name: str | None = None) -> None:
        self._model: Any = model
        self._name = name or type(model).__name__
        self._arrived: Sequence[TensorsOrError] = ()

    def arrive(self, tensors: Sequence[TensorsOrError]) -> None:
        """Keep the input tensors of new requests until `advance` starts them.

        vLLM's Model Runner V2 passes the tensors of all requests, not only of new requests.
        """
        self._arrived = tensors

    def advance(self, metadata: PoolingMetadata) -> tuple[list[Outcome | None], dict[int, Outcome]]:
        """Run the steps that vLLM scheduled. Return the results of finished requests, and previews of running requests.

        Returns:
            The result of each finished request by row, None for the others; and the previews by row. A failed request
            counts as finished. If vLLM schedules its next step before it learns of the failure, it fails once more.

        """
        states, cursor = metadata.pooling_states, metadata.get_pooling_cursor()
        self._begin_new(states, metadata.pooling_params, metadata.prompt_lens.tolist())
        running: list[ActiveRequest] = [getattr(state, _ATTRIBUTE) for state in states]
        due = cursor.num_scheduled_tokens_cpu.tolist()
        early: dict[int, Outcome] = {}
        for number in range(max(due, default=0)):
            rows = [row for row, count in enumerate(due) if count > number]
            self.step([running[row] for row in rows])
            shown = [
                row
                for row in rows
                if running[row].finished_steps in running[row].preview_steps and not running[row].failed
            ]
            early |= zip(shown, self.results([running[row] for row in shown], "preview"), strict=True)
        finished = cursor.get_finished_mask()
        """vLLM's own mask of the finished requests. It is changed in place to include failed requests, so that vLLM
        returns their errors."""
        finished[:] = [ends or request.failed for ends, request in zip(finished, running, strict=True)]
        ended = [row for row, ends in enumerate(finished) if ends]
        results: list[Outcome | None] = [None] * len(running)
        for row, result in zip(ended, self.results([running[row] for row in ended], "finish"), strict=True):
            results[row] = result
            if not running[row].failed:
                delattr(states[row], _ATTRIBUTE)
        return results, early

    def _begin_new(
        self, states: Sequence[PoolingStates], params: Sequence[PoolingParams], totals: Sequence[int]
    ) -> None:
        arrivals, self._arrived = self._arrived, ()
        new = [row for row, state in enumerate(states) if not hasattr(state, _ATTRIBUTE)]
        if len(arrivals) == len(states):
            arrivals = [arrivals[row] for row in new]
        for place, row in enumerate(new):
            tensors = arrivals[place] if len(arrivals) == len(new) else ModelError("its tensors did not come with it")
            extra = params[row].extra_kwargs or {}
            try:
                options: OutputParams | MMOutError = wire.read(params[row]) or OutputParams()
            except MMOutError as error:
                options = error
            request = self.begin(tensors, options, totals[row], extra.get(wire.REPORTS) or ())
            setattr(states[row], _ATTRIBUTE, request)

    def begin(
        self,
        tensors: TensorsOrError,
        params: OutputParams | MMOutError,
        total_steps: int,
        preview_steps: Sequence[int] = (),
    ) -> ActiveRequest:
        """Start a request of ``total_steps`` steps. The request fails if ``tensors`` or ``params`` is an MMOutError."""
        fault = next((value for value in (tensors, params) if isinstance(value, MMOutError)), None)
        return ActiveRequest(
            fault or self._catch_errors(self._begun, tensors, params, total_steps), total_steps, preview_steps
        )

    def _begun(self, tensors: Mapping[str, torch.Tensor], params: OutputParams, total_steps: int) -> Any:
        return self._model.begin(dict(tensors), msgspec.structs.replace(params, num_inference_steps=total_steps))

    def step(self, running: Sequence[ActiveRequest]) -> None:
        """Run one step of each request."""
        alive = [request for request in running if not request.failed]
        for group in _group_by_shape(alive):
            for request, state in zip(group, self._stepped(group), strict=True):
                request.state = state
        for request in running:
            request.finished_steps += 1

    def _stepped(self, group: Sequence[ActiveRequest]) -> list[Any]:
        states, steps = [request.state for request in group], [request.finished_steps for request in group]
        new_states = self._catch_errors(self._states_after, states, steps)
        if isinstance(new_states, MMOutError):
            return [new_states] if len(group) == 1 else [self._stepped([request])[0] for request in group]
        return [*new_states]

    def _states_after(self, states: list[Any], steps: list[int]) -> list[Any]:
        new_states = self._model.step(states, steps)
        if not isinstance(new_states, list | tuple) or len(new_states) != len(states):
            got = f"{len(new_states)}" if isinstance(new_states, list | tuple) else type(new_states).__name__
            raise ModelError(f"{self._name}.step must return a list of the {len(states)} states, got {got}")
        return [*new_states]

    def results(self, ended: Sequence[ActiveRequest], method: str) -> list[Outcome]:
        """Call the model's ``finish`` or ``preview`` on batches of requests. Return each request's output or error."""
        results: dict[int, Outcome] = {id(request): request.state for request in ended if request.failed}
        call = getattr(self._model, method, None) or self._model.finish
        for group in _group_by_shape([request for request in ended if not request.failed]):
            results |= zip(map(id, group), self._finished(group, call, method), strict=True)
        return [results[id(request)] for request in ended]

    def _finished(self, group: Sequence[ActiveRequest], call: Callable[..., Any], method: str) -> list[Outcome]:
        results: list[Outcome] | MMOutError = self._catch_errors(
            self._parts, call, [run.state for run in group], method
        )
        if not isinstance(results, MMOutError):
            return results
        return [results] if len(group) == 1 else [self._finished([request], call, method)[0] for request in group]

    def _parts(self, call: Callable[..., Any], states: list[Any], method: str) -> list[Outcome]:
        outputs = call(states)
        giver = f"{self._name}.{method}"
        if not isinstance(outputs, list | tuple):
            group = checked_group(outputs, len(states), giver, ModelError)
            return [each(lambda tensor, row=row: tensor[row], group) for row in range(len(states))]
        if len(outputs) != len(states):
            raise ModelError(f"{giver} must return a result for each of the {len(states)} states, got {len(outputs)}")
        return [self._single(output, giver) for output in outputs]

    def _single(self, output: Any, giver: str) -> Outcome:
        if isinstance(output, MMOutError):
            return output
        raw: Raw = output if isinstance(output, torch.Tensor) else dict(output)
        return each(lambda tensor: tensor[0], checked_group(each(lambda leaf: leaf[None], raw), 1, giver, ModelError))

    def _catch_errors(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call a function that runs the model's code. Return its result, or its exception as an MMOutError."""
        try:
            return call(*args)
        except (InputError, ModelError) as error:
            return type(error)(message_of(error))
        except MMOutError as error:
            return InputError(message_of(error))
        except BaseException as error:  # noqa: BLE001 - whatever an author's code raises fails only these requests
            raise_interrupt(error)
            logger.debug("%s failed", self._name, exc_info=error)
            return ModelError(f"model {self._name} failed: {type_and_message(error)}; correct its code, or its input")


def _group_by_shape(running: Iterable[ActiveRequest]) -> list[list[ActiveRequest]]:
    """Group requests whose states have tensors of equal shapes and dtypes, so that they can run as one batch."""
    groups: dict[object, list[ActiveRequest]] = {}
    for request in running:
        groups.setdefault(_likeness(request.state), []).append(request)
    return [*groups.values()]


def _likeness(state: Any) -> object:
    if isinstance(state, torch.Tensor):
        return state.shape, state.dtype
    if is_dataclass(state) and not isinstance(state, type):
        state = {entry.name: getattr(state, entry.name) for entry in fields(state)}
    if isinstance(state, Mapping):
        return tuple((name, _likeness(value)) for name, value in state.items())
    if isinstance(state, list | tuple):
        return tuple(map(_likeness, state))
    return type(state)
