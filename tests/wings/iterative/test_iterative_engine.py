"""An iterative model on a real engine: each request at its own step, with the result that it has alone."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from iterative_models import STATES, LabelFlow, alone
from model_folders import config_of, engine_here, folder_of, runner_of

from vllm_mmout import OutputParams
from vllm_mmout.errors import ForwardError, InputError, OptionError

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def flow(tmp_path_factory):
    """A folder, and the model in plain PyTorch."""
    folder, weights = folder_of(tmp_path_factory.mktemp("flow"), LabelFlow, num_inference_steps=3)
    model = LabelFlow(config_of(LabelFlow))
    model.load_state_dict(weights)
    return folder, model


@pytest.fixture(scope="module")
def flow_llm(flow):
    """An engine of four requests."""
    return engine_here(flow[0], max_num_seqs=4)


def of(steps, seed=0):
    """Params of a request."""
    return OutputParams(num_inference_steps=steps, seed=seed)


def test_requests_of_different_lengths_in_one_batch(flow, flow_llm):
    """Nine requests through an engine of four: each has the result that it has alone, none stays behind."""
    asked = [(seed % 6, steps, seed) for seed, steps in enumerate([5, 1, 9, 2, 50, 3, 7, 4, 6])]
    results = flow_llm.generate([label for label, _, _ in asked], [of(steps, seed) for _, steps, seed in asked])
    for result, (label, steps, seed) in zip(results, asked, strict=True):
        np.testing.assert_allclose(result.outputs.array, alone(flow[1], label, steps, seed), atol=1e-5)
    del results, result
    gc.collect()
    assert len(STATES) == 0


def test_steps_without_a_number(flow, flow_llm):
    """A request that names none takes those of config.json."""
    (result,) = flow_llm.generate([2], OutputParams(seed=4))
    np.testing.assert_allclose(result.outputs.array, alone(flow[1], 2, 3, 4), atol=1e-5)


def test_one_step_of_each_request(flow_llm):
    """A request that is alone takes one step at a time, too, and those beside each other share theirs."""
    model = runner_of(flow_llm).get_model().model
    model.batches.clear()
    flow_llm.generate([2], of(6))
    assert model.batches == [[(2, step)] for step in range(6)]
    model.batches.clear()
    flow_llm.generate([2, 4], [of(2), of(5)])
    assert [len(batch) for batch in model.batches] in ([2, 2, 1, 1, 1], [1, 2, 2, 1, 1], [1, 2, 1, 1, 1, 1])


def test_failures_stay_with_their_request(flow, flow_llm):
    """A label that begin refuses, and one that a step fails on, take no other with them."""
    results = flow_llm.generate([7, 6, 2, 8, 4], of(4))
    errors = [result.error for result in results]
    assert [type(error) for error in errors] == [InputError, ForwardError, type(None), ForwardError, type(None)]
    assert "there is no label 7" in str(errors[0])
    assert "never gets further" in str(errors[1])
    for result, label in zip((results[2], results[4]), (2, 4), strict=True):
        np.testing.assert_allclose(result.outputs.array, alone(flow[1], label, 4), atol=1e-5)


def test_a_failed_request_ends_at_once(flow_llm):
    """One that would take fifty steps ends with the third, which fails; one that comes then is none the worse."""
    engine = flow_llm.llm_engine
    add(engine, 0, Asked(6, 50, 0, None))
    outputs = []
    for moment in range(15):
        if moment in (2, 3, 4):
            add(engine, moment, Asked(2, 2, moment, None))
        outputs += engine.step()
    assert not engine.has_unfinished_requests()
    errors = {output.request_id: output.error for output in outputs}
    assert "never gets further" in str(errors.pop("0"))
    assert errors == {"2": None, "3": None, "4": None}


def test_options(flow_llm):
    """Too many steps, and options that the model does not take, are refused before they reach the engine."""
    asked = [of(2000), OutputParams(strength=0.5), OutputParams(guidance_scale=2.0, num_inference_steps=1)]
    many, strange, fine = (result.error for result in flow_llm.generate([1, 1, 1], asked))
    assert isinstance(many, OptionError)
    assert isinstance(strange, OptionError)
    assert "needs 2000 steps, and the model allows at most 1000" in str(many)
    assert "strength is set, and model LabelFlow does not take it" in str(strange)
    assert fine is None


def test_unmarked_requests(flow, flow_llm):
    """``LLM.encode`` gives the raw tensor, of as many steps as its prompt has tokens."""
    (result,) = flow_llm.encode([{"prompt_token_ids": [1], "multi_modal_data": {"image": 2}}], pooling_task="plugin")
    np.testing.assert_allclose(result.outputs.data, alone(flow[1], 2, 3), atol=1e-5)


@dataclass
class Asked:
    """A request of the property below, by the engine's steps."""

    label: int
    steps: int
    comes: int
    ends: int | None
    """When it is aborted."""
    result: object = field(default=None, compare=False)


def add(engine, seed, one):
    """Add a request to an engine."""
    from vllm import PoolingParams

    inputs, params = engine.output_processor.binding.inputs, of(one.steps, seed)
    prompt = inputs.render(inputs.map(one.label, params), one.steps)
    engine.add_request(f"{seed}", prompt, PoolingParams(task="plugin", extra_kwargs={"mmout": params.to_wire()}))


def drive(engine, asked):
    """Step an engine until it has done with all requests."""
    for moment in range(300):
        for seed, one in enumerate(asked):
            if one.comes == moment:
                add(engine, seed, one)
            elif one.ends == moment:
                engine.abort_request([f"{seed}"])
        for output in engine.step() if engine.has_unfinished_requests() else ():
            if output.error is None:
                asked[int(output.request_id)].result = output.outputs.array
        if moment > 12 and not engine.has_unfinished_requests():
            break


ASKED = st.builds(
    Asked, st.integers(0, 7), st.integers(1, 12), st.integers(0, 12), st.one_of(st.none(), st.integers(0, 12))
)


@settings(max_examples=25)
@given(st.lists(ASKED, min_size=1, max_size=9))
def test_any_order_of_arrivals_lengths_and_aborts(flow, flow_llm, asked):
    """Each that neither fails nor is aborted has the result that it has alone; no state stays when all are gone."""
    drive(flow_llm.llm_engine, asked)
    for seed, one in enumerate(asked):
        fails = one.label == 7 or (one.label == 6 and one.steps > 2)
        if fails or one.ends is None or one.ends <= one.comes:
            assert (one.result is None) == fails
        if one.result is not None:
            np.testing.assert_allclose(one.result, alone(flow[1], one.label, one.steps, seed), atol=1e-5)
    flow_llm.generate([0], of(1))  # vLLM's worker hears of the last aborts with the next step
    gc.collect()
    assert len(STATES) == 0
