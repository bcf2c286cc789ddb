"""Tests of the model on vLLM, with the engine in this process."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from vllm import LLM
from vllm_mmout import OutputParams

from green_cover.model import GreenCover

IMAGE = np.random.default_rng(0).integers(0, 6000, (4, 40, 50), np.uint16)


@pytest.fixture(scope="module")
def llm(folder):
    """Return an engine with the model. It uses little memory, because tests share a machine."""
    return LLM(str(folder), gpu_memory_utilization=0.3)


def test_shares_are_those_of_plain_pytorch(llm, folder):
    """The engine's results are exactly those of the model."""
    model = GreenCover(json.loads((folder / "config.json").read_text()))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    with torch.inference_mode():
        expected = model(torch.from_numpy(IMAGE)[None])[0].numpy()
    result = llm.generate(IMAGE, OutputParams(output="share"))[0]
    np.testing.assert_array_equal(result.outputs.array, expected)


def test_bands_are_chosen_for_a_request(llm):
    """The engine reads the bands of an input in the order of the request."""
    both = np.concatenate([IMAGE[::-1], IMAGE])
    first, second = llm.generate([IMAGE, both], [OutputParams(), OutputParams(bands=[4, 3, 2, 1])])
    np.testing.assert_array_equal(first.outputs.array, second.outputs.array)
    assert first.outputs.array.dtype == np.uint8
