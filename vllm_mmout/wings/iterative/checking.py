"""check_iterative_model: what the engine relies on of an iterative model, on drawn batches of given requests."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import hypothesis
import torch
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from vllm_mmout.errors import MMOutError
from vllm_mmout.processors.raw import named
from vllm_mmout.testing.case import BrokenPromiseError
from vllm_mmout.testing.equality import difference
from vllm_mmout.wings.iterative.running import Running, Steps

if TYPE_CHECKING:
    from torch import nn

    from vllm_mmout.models.single_pass import Outcome
    from vllm_mmout.params import OutputParams

Request: TypeAlias = "tuple[Mapping[str, torch.Tensor], OutputParams]"
"""A request's tensors by keyword, without the batch axis, and its options: num_inference_steps, a seed, and others."""


def check_iterative_model(
    model: nn.Module,
    requests: Sequence[Request],
    *,
    tolerance: float = 1e-4,
    settings: hypothesis.settings | None = None,
) -> None:
    """Check that a request's result does not depend on what runs beside it.

    Requests are run alone, twice; then together, each beginning at a step that is drawn. ``step``, ``finish`` and
    ``preview`` must leave the states that they were given as they were: a batch that fails is run again one by one.

    Args:
        model: with its weights, in ``eval`` mode.
        requests: two or more, of different numbers of steps and, if it takes such, of different sizes.
        tolerance: by how much results may differ, of their largest value where that is above 1.
        settings: hypothesis' settings; by default those of the loaded profile, without a deadline.

    Raises:
        ValueError: fewer than two requests, or one without ``num_inference_steps`` and ``seed``.
        BrokenPromiseError: an `AssertionError` that says what was seen.

    """
    if len(requests) < 2:
        raise ValueError(f"give two requests or more, got {len(requests)}: they are run beside each other")
    for number, (_, params) in enumerate(requests):
        if params.num_inference_steps is None or params.seed is None:
            raise ValueError(f"request {number} must say num_inference_steps and seed, to be run twice")
    checked = _Checked(model, requests, tolerance)
    with torch.inference_mode():
        expected = [checked.together([number], [0])[0] for number in range(len(requests))]
        for number, result in enumerate(expected):
            if isinstance(result, MMOutError):
                raise BrokenPromiseError(f"request {number} fails alone: {result}") from result
            checked.compare(checked.together([number], [0])[0], result, f"request {number}, alone a second time")

    begins = st.lists(st.integers(0, 6), min_size=len(requests), max_size=len(requests))

    def check(begins: Sequence[int]) -> None:
        with torch.inference_mode():
            results = checked.together(range(len(requests)), begins)
        for number, result in enumerate(results):
            where = f"request {number}, begun at step {begins[number]} beside others at {[*begins]},"
            checked.compare(result, expected[number], where)

    quick = settings or hypothesis.settings(
        deadline=None,
        max_examples=10,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow],
        database=None,
    )
    quick(hypothesis.given(begins)(check))()


class _Checked:
    """A model whose states are looked at before and after each call."""

    def __init__(self, model: nn.Module, requests: Sequence[Request], tolerance: float) -> None:
        self._name = type(model).__name__
        self._requests = requests
        self._tolerance = tolerance
        self._steps = Steps(_Watched(model), self._name)  # type: ignore[arg-type]  # a model as far as it is called

    def together(self, numbers: Sequence[int], begins: Sequence[int]) -> list[Outcome]:
        """The results of some requests, each of which begins at a step of its own."""
        running: dict[int, Running] = {}
        results: dict[int, Outcome] = {}
        moment = 0
        while len(results) < len(numbers):
            for place, number in enumerate(numbers):
                if begins[place] == moment:
                    tensors, params = self._requests[number]
                    running[place] = self._steps.begin(tensors, params, params.num_inference_steps or 1)
            self._steps.step([one for one in running.values() if one.taken < one.total])
            ended = [place for place, one in running.items() if one.taken == one.total and place not in results]
            made = self._steps.results([running[place] for place in ended], "finish")
            results |= zip(ended, made, strict=True)
            moment += 1
        return [results[place] for place in range(len(numbers))]

    def compare(self, result: Outcome, expected: Outcome, where: str) -> None:
        """Raise where two results differ."""
        if isinstance(result, MMOutError) or isinstance(expected, MMOutError):
            raise BrokenPromiseError(f"{self._name}: {where} fails: {result}")
        left, right = named(result), named(expected)
        for name in sorted({*left, *right}):
            ours, alone = left.get(name), right.get(name)
            if ours is None or alone is None or ours.shape != alone.shape or ours.dtype != alone.dtype:
                raise BrokenPromiseError(f"{self._name}: {where} has another shape or dtype than alone")
            largest = max(1.0, float(alone.abs().max())) if alone.is_floating_point() and alone.numel() else 1.0
            apart = float((ours.double() - alone.double()).abs().max()) if alone.numel() else 0.0
            if not apart <= self._tolerance * largest:
                raise BrokenPromiseError(f"{self._name}: {where} differs by {apart:.3g} from what it is alone")


class _Watched:
    """Calls a model, and raises where it changed a state that it was given."""

    def __init__(self, model: nn.Module) -> None:
        self._model: Any = model
        if hasattr(model, "preview"):
            self.preview = partial(self._kept, "preview")

    def begin(self, inputs: Mapping[str, torch.Tensor], params: OutputParams) -> Any:
        """As the model's."""
        return self._model.begin(inputs, params)

    def step(self, states: list[Any], steps: list[int]) -> Any:
        """As the model's, and its preview of what comes of it."""
        made = self._kept("step", states, steps)
        if hasattr(self, "preview"):
            self.preview(list(made))
        return made

    def finish(self, states: list[Any]) -> Any:
        """As the model's."""
        return self._kept("finish", states)

    def _kept(self, method: str, states: list[Any], *also: Any) -> Any:
        before = [copy.deepcopy(state) for state in states]
        made = getattr(self._model, method)(states, *also)
        changed = difference(before, states, at="states")
        if changed is not None:
            raise BrokenPromiseError(
                f"{type(self._model).__name__}.{method} changes the states it was given: {changed}"
            )
        return made
