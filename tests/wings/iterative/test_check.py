"""check_iterative_model: a sound model passes, and each way in which one is not is found."""

from __future__ import annotations

import pytest
import torch
from iterative_models import LabelFlow, State

from vllm_mmout import OutputParams
from vllm_mmout.testing import check_iterative_model

pytestmark = pytest.mark.engine


class Averaging(LabelFlow):
    """Takes the mean over the batch."""

    def step(self, states, steps):
        mean = torch.stack([state.x for state in states]).mean(0)
        return [State(state.x * 0.5 + mean * 0.5, state.label, state.steps) for state in super().step(states, steps)]


class InPlace(LabelFlow):
    """Works in the states that it was given."""

    def step(self, states, steps):
        for state in states:
            state.x *= 0.5
        return states


class Unseeded(LabelFlow):
    """Draws its noise from the one generator of all."""

    def begin(self, inputs, params):
        state = super().begin(inputs, params)
        return State(torch.randn(state.x.shape), state.label, state.steps)


class Previewing(LabelFlow):
    """Shows a state, and spoils it."""

    def preview(self, states):
        states[0].x.zero_()
        return self.finish(states)


REQUESTS = [
    ({"label": torch.tensor(label)}, OutputParams(num_inference_steps=steps, seed=label))
    for label, steps in ((2, 4), (4, 7), (1, 1), (0, 3))
]


def test_a_sound_model():
    """Nothing is found."""
    check_iterative_model(LabelFlow({}), REQUESTS)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Averaging, r"begun at step \d beside others at .* differs by .* from the result it has alone"),
        (InPlace, "InPlace.step changes the states"),
        (Unseeded, "alone a second time differs"),
        (Previewing, "Previewing.preview changes the states"),
    ],
)
def test_an_unsound_model(model, says):
    """The message says what was seen."""
    with pytest.raises(AssertionError, match=says):
        check_iterative_model(model({}), REQUESTS)


def test_requests_that_cannot_be_run_twice():
    """They must say their steps and their seed."""
    with pytest.raises(ValueError, match="must set num_inference_steps and seed"):
        check_iterative_model(LabelFlow({}), [*REQUESTS, ({"label": torch.tensor(1)}, OutputParams(seed=1))])
