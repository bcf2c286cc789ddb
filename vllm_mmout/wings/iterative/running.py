"""Running: the requests of an iterative model in a worker, each at its own step."""

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
"""Of vLLM's own state of a pooling request, which it drops when the request has ended or was aborted."""

Given: TypeAlias = "Mapping[str, torch.Tensor] | MMOutError"
"""A request's tensors by keyword, or why there are none."""


@dataclass(slots=True)
class Running:
    """A request between its first step and its last."""

    state: Any
    """The author's; an MMOutError of one that failed."""
    total: int
    shown_after: Sequence[int] = ()
    taken: int = field(default=0, init=False)
    """Steps that are done."""

    @property
    def failed(self) -> bool:
        """Whether it does no more steps."""
        return isinstance(self.state, MMOutError)


class Steps:
    """Calls the author's model for the requests of a step.

    What it raises for several is asked again of each alone, so that one takes no other with it; a model must therefore
    leave the states that it was given as they were.
    """

    def __init__(self, model: nn.Module, name: str | None = None) -> None:
        self._model: Any = model
        self._name = name or type(model).__name__
        self._arrived: Sequence[Given] = ()

    def arrive(self, given: Sequence[Given]) -> None:
        """Take the tensors of requests that begin with this step; Model Runner V2 gives those of all each time."""
        self._arrived = given

    def advance(self, metadata: PoolingMetadata) -> tuple[list[Outcome | None], dict[int, Outcome]]:
        """Do the steps that are due of each request.

        Gives the result of each that is at its end, else None, and what others give before theirs, by row. A request
        that failed is at its end; where vLLM has planned its next step before it hears of that, it fails once more.
        """
        states, cursor = metadata.pooling_states, metadata.get_pooling_cursor()
        self._begin_new(states, metadata.pooling_params, metadata.prompt_lens.tolist())
        running: list[Running] = [getattr(state, _ATTRIBUTE) for state in states]
        due = cursor.num_scheduled_tokens_cpu.tolist()
        early: dict[int, Outcome] = {}
        for number in range(max(due, default=0)):
            rows = [row for row, count in enumerate(due) if count > number]
            self.step([running[row] for row in rows])
            shown = [row for row in rows if running[row].taken in running[row].shown_after and not running[row].failed]
            early |= zip(shown, self.results([running[row] for row in shown], "preview"), strict=True)
        finished = cursor.get_finished_mask()
        """vLLM's own, which it reads when all steps are done."""
        finished[:] = [ends or one.failed for ends, one in zip(finished, running, strict=True)]
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
        given, self._arrived = self._arrived, ()
        new = [row for row, state in enumerate(states) if not hasattr(state, _ATTRIBUTE)]
        if len(given) == len(states):
            given = [given[row] for row in new]
        for place, row in enumerate(new):
            tensors = given[place] if len(given) == len(new) else ModelError("its tensors did not come with it")
            extra = params[row].extra_kwargs or {}
            try:
                asked: OutputParams | MMOutError = wire.read(params[row]) or OutputParams()
            except MMOutError as error:
                asked = error
            begun = self.begin(tensors, asked, totals[row], extra.get(wire.REPORTS) or ())
            setattr(states[row], _ATTRIBUTE, begun)

    def begin(
        self, tensors: Given, params: OutputParams | MMOutError, total: int, shown_after: Sequence[int] = ()
    ) -> Running:
        """A request before its first step, of ``total``."""
        fault = next((one for one in (tensors, params) if isinstance(one, MMOutError)), None)
        return Running(fault or self._called(self._begun, tensors, params, total), total, shown_after)

    def _begun(self, tensors: Mapping[str, torch.Tensor], params: OutputParams, total: int) -> Any:
        return self._model.begin(dict(tensors), msgspec.structs.replace(params, num_inference_steps=total))

    def step(self, running: Sequence[Running]) -> None:
        """Do one step of each."""
        alive = [one for one in running if not one.failed]
        for group in _alike(alive):
            for one, state in zip(group, self._stepped(group), strict=True):
                one.state = state
        for one in running:
            one.taken += 1

    def _stepped(self, group: Sequence[Running]) -> list[Any]:
        states, steps = [one.state for one in group], [one.taken for one in group]
        made = self._called(self._states_after, states, steps)
        if isinstance(made, MMOutError):
            return [made] if len(group) == 1 else [self._stepped([one])[0] for one in group]
        return [*made]

    def _states_after(self, states: list[Any], steps: list[int]) -> list[Any]:
        made = self._model.step(states, steps)
        if not isinstance(made, list | tuple) or len(made) != len(states):
            got = f"{len(made)}" if isinstance(made, list | tuple) else type(made).__name__
            raise ModelError(f"{self._name}.step must give a list of the {len(states)} states, got {got}")
        return [*made]

    def results(self, ended: Sequence[Running], method: str) -> list[Outcome]:
        """What the model's ``finish`` or ``preview`` makes of each."""
        results: dict[int, Outcome] = {id(one): one.state for one in ended if one.failed}
        call = getattr(self._model, method, None) or self._model.finish
        for group in _alike([one for one in ended if not one.failed]):
            results |= zip(map(id, group), self._finished(group, call, method), strict=True)
        return [results[id(one)] for one in ended]

    def _finished(self, group: Sequence[Running], call: Callable[..., Any], method: str) -> list[Outcome]:
        made: list[Outcome] | MMOutError = self._called(self._parts, call, [one.state for one in group], method)
        if not isinstance(made, MMOutError):
            return made
        return [made] if len(group) == 1 else [self._finished([one], call, method)[0] for one in group]

    def _parts(self, call: Callable[..., Any], states: list[Any], method: str) -> list[Outcome]:
        made = call(states)
        giver = f"{self._name}.{method}"
        if not isinstance(made, list | tuple):
            group = checked_group(made, len(states), giver, ModelError)
            return [each(lambda tensor, row=row: tensor[row], group) for row in range(len(states))]
        if len(made) != len(states):
            raise ModelError(f"{giver} must give a result for each of the {len(states)} states, got {len(made)}")
        return [self._single(one, giver) for one in made]

    def _single(self, made: Any, giver: str) -> Outcome:
        if isinstance(made, MMOutError):
            return made
        raw: Raw = made if isinstance(made, torch.Tensor) else dict(made)
        return each(lambda tensor: tensor[0], checked_group(each(lambda one: one[None], raw), 1, giver, ModelError))

    def _called(self, call: Callable[..., Any], *args: Any) -> Any:
        """What an author's code gives, or an error of the requests that it was called for."""
        try:
            return call(*args)
        except (InputError, ModelError) as error:
            return type(error)(message_of(error))
        except MMOutError as error:
            return InputError(message_of(error))
        except BaseException as error:  # noqa: BLE001 - all that an author's code raises is that request's
            raise_interrupt(error)
            logger.debug("%s failed", self._name, exc_info=error)
            return ModelError(f"model {self._name} failed: {type_and_message(error)}; correct its code, or its input")


def _alike(running: Iterable[Running]) -> list[list[Running]]:
    """Requests whose states have tensors of the same shapes and dtypes, together."""
    groups: dict[object, list[Running]] = {}
    for one in running:
        groups.setdefault(_likeness(one.state), []).append(one)
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
