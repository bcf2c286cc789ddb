"""A model computes in the dtype of its config.json: with float32 the bits are those of plain PyTorch."""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from model_folders import config_of, engine_elsewhere, engine_here, folder_of, runner_of
from models_for_tests import SoftmaxNet

pytestmark = pytest.mark.engine
RNG = np.random.default_rng(12)
INPUTS = [RNG.normal(0, 1, (3, *size)).astype(np.float32) for size in [(17, 23), (31, 9), (17, 23)] * 6]
SETTINGS = {"mmout": {"output_processor": "tensor"}}


def plain(weights, dtype=torch.float32):
    """The model without an engine."""
    network = SoftmaxNet(config_of(SoftmaxNet)).to(dtype)
    network.load_state_dict(weights)
    return network.eval().requires_grad_(requires_grad=False)


def forwards(outputs):
    """The inputs of each forward, in the order of its rows, by what the model says of it."""
    rows = defaultdict(dict)
    for number, output in enumerate(outputs):
        rows[int(output["call"])][int(output["place"])] = number
    groups = [[row[place] for place in sorted(row)] for row in rows.values()]
    assert sorted(number for group in groups for number in group) == list(range(len(outputs)))
    assert max(map(len, groups)) > 1, "some requests were computed together"
    return groups


@contextmanager
def threads(count):
    """Compute with as many threads; an engine in this process has replaced ``torch.set_num_threads`` for good."""
    before = torch.get_num_threads()
    torch._C.set_num_threads(count)
    try:
        yield
    finally:
        torch._C.set_num_threads(before)


def assert_bits(outputs, network):
    """Each output has the bits of plain PyTorch on the same batch."""
    for group in forwards(outputs):
        batch = torch.from_numpy(np.stack([INPUTS[number] for number in group]))
        (count,) = {int(outputs[number]["threads"]) for number in group}
        with threads(count), torch.inference_mode():
            expected = network.logits(batch).float().numpy()
        for number, one in zip(group, expected, strict=True):
            assert outputs[number]["logits"].dtype == np.float32
            assert outputs[number]["logits"].tobytes() == one.tobytes()


def generated(llm):
    return [result.outputs.arrays for result in llm.generate(INPUTS, use_tqdm=False)]


def test_float32_gives_the_bits_of_plain_pytorch(tmp_path):
    """Convolution, linear layer and softmax of each batch that the engine made."""
    path, weights = folder_of(tmp_path / "model", SoftmaxNet, **SETTINGS)
    llm = engine_here(path)
    assert {parameter.dtype for parameter in runner_of(llm).get_model().parameters()} == {torch.float32}
    assert_bits(generated(llm), plain(weights))


@pytest.mark.slow
def test_float32_gives_the_bits_of_plain_pytorch_across_processes(tmp_path):
    """The same with the engine in a process of its own, whose number of threads is vLLM's choice."""
    path, weights = folder_of(tmp_path / "model", SoftmaxNet, **SETTINGS)
    llm = engine_elsewhere(path)
    try:
        outputs = generated(llm)
    finally:
        llm.llm_engine.engine_core.shutdown()
    assert_bits(outputs, plain(weights))


def test_bfloat16_is_the_models_dtype_where_config_json_says_so(tmp_path):
    """Weights stored as float32 are loaded as bfloat16; the bits are those of plain PyTorch in bfloat16."""
    path, weights = folder_of(tmp_path / "model", SoftmaxNet, dtype="bfloat16", **SETTINGS)
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    llm = engine_here(path)
    assert {parameter.dtype for parameter in runner_of(llm).get_model().parameters()} == {torch.bfloat16}
    assert_bits(generated(llm), plain(weights, torch.bfloat16))
