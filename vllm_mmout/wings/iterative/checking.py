"""Property test for iterative models: a result must not depend on the other requests in the batch."""

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
from vllm_mmout.wings.iterative.active_requests import ActiveRequest, StepRunner

if TYPE_CHECKING:
    from torch import nn

    from vllm_mmout.models.single_pass import Outcome
    from vllm_mmout.params import OutputParams

Request: TypeAlias = "tuple[Mapping[str, torch.Tensor], OutputParams]"
"""Request of the test: input tensors by name (without the batch axis), and options. The options must set
``num_inference_steps`` and ``seed``."""


def check_iterative_model(
    model: nn.Module,
    requests: Sequence[Request],
    *,
    tolerance: float = 1e-4,
    settings: hypothesis.settings | None = None,
) -> None:
    """Check that a request's result does not depend on other requests that run at the same time.

    Each request is run alone twice. Then all requests are run together, and hypothesis draws the step at which each
    begins. ``step``, ``finish`` and ``preview`` must not change the states that they receive: after a batch fails, its
    requests are run again one by one from the same states.

    Args:
        model: the model with its weights, in ``eval`` mode.
        requests: two or more requests with different numbers of steps. If the model takes inputs of several sizes,
            include different sizes.
        tolerance: largest allowed difference between results, relative to their largest value if that is above 1.
        settings: hypothesis' settings; by default those of the loaded profile, without a deadline.

    Raises:
        ValueError: fewer than two requests, or a request without ``num_inference_steps`` or ``seed``.
        BrokenPromiseError: the model broke a rule. It is an `AssertionError` whose message describes what happened.

    """
    if len(requests) < 2:
        raise ValueError(f"give two or more requests, got {len(requests)}: they are run side by side")
    for number, (_, params) in enumerate(requests):
        if params.num_inference_steps is None or params.seed is None:
            raise ValueError(f"request {number} must set num_inference_steps and seed, because it is run twice")
    checked = _CheckedModel(model, requests, tolerance)
    with torch.inference_mode():
        expected = [checked.together([number], [0])[0] for number in range(len(requests))]
        for number, result in enumerate(expected):
            if isinstance(result, MMOutError):
                raise BrokenPromiseError(f"request {number} fails alone: {result}") from result
            checked.compare(checked.together([number], [0])[0], result, f"request {number}, alone a second time")

    start_steps = st.lists(st.integers(0, 6), min_size=len(requests), max_size=len(requests))

    def check(start_steps: Sequence[int]) -> None:
        with torch.inference_mode():
            results = checked.together(range(len(requests)), start_steps)
        for number, result in enumerate(results):
            where = f"request {number}, begun at step {start_steps[number]} beside others at {[*start_steps]},"
            checked.compare(result, expected[number], where)

    quick = settings or hypothesis.settings(
        deadline=None,
        max_examples=10,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow],
        database=None,
    )
    quick(hypothesis.given(start_steps)(check))()


class _CheckedModel:
    """Model under test. Its methods run the requests in batches, and compare the results."""

    def __init__(self, model: nn.Module, requests: Sequence[Request], tolerance: float) -> None:
        self._name = type(model).__name__
        self._requests = requests
        self._tolerance = tolerance
        self._steps = StepRunner(_WatchedModel(model), self._name)  # type: ignore[arg-type]  # has the methods that StepRunner calls

    def together(self, numbers: Sequence[int], start_steps: Sequence[int]) -> list[Outcome]:
        """Run requests in a batch, and return the results. Each request joins the batch at its step in ``start_steps``.

        ``numbers`` are the indices of the requests.
        """
        running: dict[int, ActiveRequest] = {}
        results: dict[int, Outcome] = {}
        moment = 0
        while len(results) < len(numbers):
            for place, number in enumerate(numbers):
                if start_steps[place] == moment:
                    tensors, params = self._requests[number]
                    running[place] = self._steps.begin(tensors, params, params.num_inference_steps or 1)
            self._steps.step([request for request in running.values() if request.finished_steps < request.total_steps])
            ended = [
                place
                for place, request in running.items()
                if request.finished_steps == request.total_steps and place not in results
            ]
            outcomes = self._steps.results([running[place] for place in ended], "finish")
            results |= zip(ended, outcomes, strict=True)
            moment += 1
        return [results[place] for place in range(len(numbers))]

    def compare(self, result: Outcome, expected: Outcome, where: str) -> None:
        """Raise BrokenPromiseError if two results differ by more than the tolerance."""
        if isinstance(result, MMOutError) or isinstance(expected, MMOutError):
            raise BrokenPromiseError(f"{self._name}: {where} fails: {result}")
        left, right = named(result), named(expected)
        for name in sorted({*left, *right}):
            ours, alone = left.get(name), right.get(name)
            if ours is None or alone is None or ours.shape != alone.shape or ours.dtype != alone.dtype:
                raise BrokenPromiseError(f"{self._name}: {where} has another shape or dtype than when it runs alone")
            largest = max(1.0, float(alone.abs().max())) if alone.is_floating_point() and alone.numel() else 1.0
            apart = float((ours.double() - alone.double()).abs().max()) if alone.numel() else 0.0
            if not apart <= self._tolerance * largest:
                raise BrokenPromiseError(f"{self._name}: {where} differs by {apart:.3g} from the result it has alone")


class _WatchedModel:
    """Wrapper of a model under test. It raises BrokenPromiseError if a call changes the states passed to it."""

    def __init__(self, model: nn.Module) -> None:
        self._model: Any = model
        if hasattr(model, "preview"):
            self.preview = partial(self._kept, "preview")

    def begin(self, inputs: Mapping[str, torch.Tensor], params: OutputParams) -> Any:
        return self._model.begin(inputs, params)

    def step(self, states: list[Any], steps: list[int]) -> Any:
        """Call the model's ``step``, then ``preview`` if defined. Raise an error if a call changes its input states."""
        new_states = self._kept("step", states, steps)
        if hasattr(self, "preview"):
            self.preview(list(new_states))
        return new_states

    def finish(self, states: list[Any]) -> Any:
        return self._kept("finish", states)

    def _kept(self, method: str, states: list[Any], *arguments: Any) -> Any:
        before = [copy.deepcopy(state) for state in states]
        output = getattr(self._model, method)(states, *arguments)
        changed = difference(before, states, at="states")
        if changed is not None:
            raise BrokenPromiseError(
                f"{type(self._model).__name__}.{method} changes the states passed to it: {changed}"
            )
        return output
