"""Wrong inputs, and inputs that a model refuses: each is the error of its own request, all others are served."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import wrong_models_for_tests as wrong
from model_folders import config_of, engine_here, runner_of, says, weights_of, write_folder

from vllm_mmout.errors import ForwardError, InputError, ModelError

pytestmark = pytest.mark.engine
CONFIG = config_of(wrong.RightNet)


@pytest.fixture(scope="module")
def obeying(tmp_path_factory):
    """An engine whose mapper gives what it is told to."""
    config = config_of(wrong.TwoTensors)
    return engine_here(write_folder(tmp_path_factory.mktemp("two"), config, {"weight": torch.ones(1)}), max_num_seqs=32)


TAKES = "TwoTensors.forward takes pixel_values, dates, extra (optional)"
GOOD = wrong.ObeyingMapper.GOOD
BAD_INPUTS = {
    "raises": ["mapper of TwoTensors", "KeyError: 'no such band'", "correct the input"],
    "raises unreadable": ["mapper of TwoTensors", "UnreadableError: (its message cannot be read: ZeroDivisionError)"],
    "nothing": ["mapper of TwoTensors", "MappedInput or a dict", "got NoneType"],
    "a list": ["mapper of TwoTensors", "got list"],
    "an array": ["mapper of TwoTensors", "got ndarray"],
    "unknown": [TAKES, "does not know 'mask'"],
    "too few": [TAKES, "needs 'pixel_values'"],
    "empty": [TAKES, "got nothing"],
    "text": ["dates must be", "got str"],
    "objects": ["dates must be", "got list"],
    "long doubles": ["extra must be", "longdouble" if np.dtype(np.longdouble).name == "longdouble" else "float"],
    "four bands": ["pixel_values must be float32 [3, 1..64, 1..64]", "got float32 [4, 5, 7]"],
    "too wide": ["pixel_values must be", "[3, 5, 65]"],
    "a batch axis": ["pixel_values must be", "[1, 3, 5, 7]", "without the batch axis"],
    "another dtype": ["dates must be int64 [2]", "got float64 [2]"],
    "no pixels": ["extra is empty", "[3, 0]"],
}
BAD_TENSORS = {
    "of four bands": ({**GOOD, "pixel_values": np.ones((4, 5, 7), np.float32)}, BAD_INPUTS["four bands"]),
    "of another dtype": ({**GOOD, "dates": torch.ones(2)}, ["dates must be int64 [2]", "got float32 [2]"]),
    "with a batch axis": ({**GOOD, "pixel_values": torch.ones(1, 3, 5, 7)}, BAD_INPUTS["a batch axis"]),
    "called otherwise": ({**GOOD, "pixels": torch.ones(3)}, [TAKES, "does not know 'pixels'"]),
    "too few": ({"pixel_values": GOOD["pixel_values"]}, [TAKES, "needs 'dates'"]),
    "none": ({}, [TAKES, "got nothing"]),
    "that are no numbers": ({**GOOD, "dates": ["a", "b"]}, ["dates must be"]),
}


def test_a_wrong_input_fails_alone(obeying):
    """Whatever a mapper does or a user hands over, it is that request's InputError; the others are served."""
    inputs, expected = [], []
    for name, parts in BAD_INPUTS.items():
        inputs += [name, "good"]
        expected += [parts, None]
    for tensors, parts in BAD_TENSORS.values():
        inputs += [tensors, GOOD, "good MappedInput"]
        expected += [parts, None, None]
    results = obeying.generate(inputs, use_tqdm=False)
    for result, parts in zip(results, expected, strict=True):
        if parts is None:
            np.testing.assert_array_equal(result.outputs.array, np.full((3, 5, 7), 4, np.float32), strict=True)
        else:
            assert type(result.error) is InputError, result
            says(result.error, *parts)


def test_a_wrong_input_alone_is_raised(obeying):
    """An input that is no list is the call's: its error is raised, and the engine goes on."""
    with pytest.raises(InputError, match="no such band"):
        obeying.generate("raises", use_tqdm=False)
    (result,) = obeying.generate("good", use_tqdm=False)
    assert result.outputs.array.shape == (3, 5, 7)


def test_encode_refuses_a_wrong_input_too(obeying):
    """``LLM.encode`` raises the same error before anything reaches the engine."""
    prompt = {"prompt_token_ids": [1], "multi_modal_data": {"image": "unknown"}}
    with pytest.raises(InputError, match="does not know 'mask'"):
        obeying.encode(prompt, pooling_task="plugin", use_tqdm=False)


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    """An engine of the model that refuses negative pixels, and the model in plain PyTorch."""
    network = wrong.RightNet(CONFIG)
    weights = weights_of(wrong.RightNet, CONFIG)
    network.load_state_dict(weights)
    network.requires_grad_(requires_grad=False)
    return engine_here(write_folder(tmp_path_factory.mktemp("right"), CONFIG, weights), max_num_seqs=8), network


def pixels(number, *, bad=False):
    array = np.random.default_rng(number).integers(0, 100, (3, 8, 9 + number % 2)).astype(np.float32)
    array[0, 0, 0] = -1 if bad else 1
    return array


def test_a_request_on_which_forward_raises_fails_alone(right):
    """Of the requests of one step, of one shape or of several, only those that the model refuses fail."""
    llm, network = right
    bad = {2, 3, 9}
    inputs = [pixels(number, bad=number in bad) for number in range(12)]
    for number, result in enumerate(llm.generate(inputs, use_tqdm=False)):
        if number in bad:
            assert type(result.error) is ForwardError
            says(result.error, "RightNet", "ValueError: a pixel is negative", f"float32 [3, 8, {9 + number % 2}]")
        else:
            expected = network(torch.from_numpy(inputs[number])[None])[0].numpy()
            np.testing.assert_array_equal(result.outputs.array, expected, strict=True)


def test_an_exception_of_forward_that_cannot_be_read_is_its_requests(right):
    """Where the ``__str__`` of what forward raises fails too, that request alone fails, and the engine goes on."""
    llm, network = right
    inputs = [pixels(number) for number in range(0, 8, 2)]
    inputs[2][0, 0, 0] = -2
    results = llm.generate(inputs, use_tqdm=False)
    failed = results.pop(2)
    assert type(failed.error) is ForwardError
    says(failed.error, "RightNet", "UnreadableError: (its message cannot be read: ZeroDivisionError)")
    for result, array in zip(results, inputs[:2] + inputs[3:], strict=True):
        expected = network(torch.from_numpy(array)[None])[0].numpy()
        np.testing.assert_array_equal(result.outputs.array, expected, strict=True)


def test_a_step_that_fails_outside_the_model_fails_its_requests_alone(right, monkeypatch):
    """Whatever breaks between vLLM and the model is an error of the requests of that step; the engine goes on."""
    llm, network = right
    inputs = [pixels(number) for number in range(0, 8, 2)]

    def broken(values, keywords):
        raise KeyError("tensors")

    with monkeypatch.context() as patch:
        patch.setattr("vllm_mmout.models.single_pass.tensors_of", broken)
        for result in llm.generate(inputs, use_tqdm=False):
            assert type(result.error) is ForwardError
            says(result.error, "RightNet", "KeyError: 'tensors'")
    for result, array in zip(llm.generate(inputs, use_tqdm=False), inputs, strict=True):
        expected = network(torch.from_numpy(array)[None])[0].numpy()
        np.testing.assert_array_equal(result.outputs.array, expected, strict=True)


def test_a_step_without_inputs_has_an_error_for_each_request(right):
    """Where vLLM hands none over, as it does for an encoder-decoder, forward gives one failure a request."""
    model = runner_of(right[0]).get_model()
    parts = model.forward(torch.ones(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)).parts
    assert [type(part) for part in parts] == [ModelError] * 3
    says(parts[0], "RightNet", "KeyError: 'tensors'")


def test_a_request_that_forward_refuses_is_the_callers_fault(right):
    """An `InputError` of the model stays one, with its own words; what stands in the step beside it is not touched."""
    llm, network = right
    inputs = [pixels(number) for number in range(0, 8, 2)]
    inputs[1][0, 0, 0] = wrong.SATURATED
    good, refused, *others = llm.generate(inputs, use_tqdm=False)
    assert type(refused.error) is InputError
    assert str(refused.error) == "1 pixels are saturated; mask them"
    for result, array in zip((good, *others), (inputs[0], *inputs[2:]), strict=True):
        expected = network(torch.from_numpy(array)[None])[0].numpy()
        np.testing.assert_array_equal(result.outputs.array, expected, strict=True)


def test_encode_gives_an_empty_tensor_where_forward_raises(right, caplog):
    """A raw tensor cannot say what failed: it is empty; the others of the step are whole."""
    llm, network = right
    inputs = [pixels(number, bad=number == 2) for number in (0, 2, 4)]
    prompts = [{"prompt_token_ids": [1], "multi_modal_data": {"image": data}} for data in inputs]
    results = llm.encode(prompts, pooling_task="plugin", use_tqdm=False)
    raw = [result.outputs.data for result in results]
    assert raw[1].numel() == 0
    for place in (0, 2):
        assert torch.equal(raw[place], network(torch.from_numpy(inputs[place])[None])[0])


def test_a_model_that_works_in_place_leaves_the_users_data_alone(tmp_path):
    """An engine in this process shares no memory with what it was given; the same input gives the same again."""
    llm = engine_here(write_folder(tmp_path / "model", config_of(wrong.WorksInPlace), {"weight": torch.ones(1)}))
    array, tensor = np.ones((3, 4, 4), np.float32), torch.ones(3, 4, 4)
    for _ in range(2):
        for data in (array, {"pixel_values": tensor}):
            (result,) = llm.generate([data], use_tqdm=False)
            np.testing.assert_array_equal(result.outputs.array, np.full((3, 4, 4), 2, np.float32))
    assert (array == 1).all()
    assert (tensor == 1).all()
