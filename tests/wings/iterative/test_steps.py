"""What an iterative model's methods do wrong, without an engine: each fault stays with its request."""

from __future__ import annotations

import threading

import pytest
import torch

from vllm_mmout.errors import ModelError
from vllm_mmout.params import OutputParams
from vllm_mmout.wings.iterative.active_requests import StepRunner

pytestmark = pytest.mark.engine


class Counts:
    """Counts steps; ``fault`` is called with the states of each step, and gives those that the model returns."""

    def __init__(self, fault):
        self.fault = fault

    def begin(self, inputs, params):
        return inputs["number"]

    def step(self, states, steps):
        return self.fault([state + 1 for state in states])

    def finish(self, states):
        return torch.stack(states)


def after_a_step(fault, *numbers):
    """The state of each request, or what it failed with, after one step of all; in a thread, where no Ctrl-C comes."""
    steps = StepRunner(Counts(fault))
    running = [steps.begin({"number": torch.tensor(number)}, OutputParams(), 1) for number in numbers]
    thread = threading.Thread(target=steps.step, args=(running,))
    thread.start()
    thread.join()
    return [one.state for one in running]


def test_a_step_that_gives_too_few_states_is_tried_with_each_alone():
    """It loses the state of one request, which fails; the others go on."""
    good, bad, other = after_a_step(lambda states: [state for state in states if state != 3], 1, 2, 4)
    assert (int(good), int(other)) == (2, 5)
    assert isinstance(bad, ModelError)
    assert "step must return a list of the 1 states, got 0" in str(bad)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_whatever_leaves_a_step_is_an_error_of_its_request(error):
    """An exception that would end the engine, if it went on, is one request's error."""

    def fault(states):
        if 3 in states:
            raise error
        return states

    good, bad = after_a_step(fault, 1, 2)
    assert int(good) == 2
    assert isinstance(bad, ModelError)
    assert error.__name__ in str(bad)
