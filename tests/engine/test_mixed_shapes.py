"""Forty requests of five shapes in one moment: each gets the result that it gets alone.

They come in four forms, mixed: arrays, files, tensors and embeddings.
"""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from model_folders import answers_of_async, config_of, engine_here, folder_of
from models_for_tests import SeveralNet
from PIL import Image

pytestmark = pytest.mark.engine
SHAPES = [(16, 16), (16, 17), (17, 16), (1, 64), (33, 5)]
RNG = np.random.default_rng(13)
ARRAYS = [RNG.integers(0, 256, (3, *SHAPES[number % 5]), np.uint8) for number in range(40)]
ORDER = RNG.permutation(40)


def png(array):
    """A file's bytes."""
    stored = io.BytesIO()
    Image.fromarray(np.moveaxis(array, 0, -1)).save(stored, "PNG")
    return stored.getvalue()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder, the inputs, and what plain PyTorch gives; whole numbers, so that no bit depends on the batch."""
    path, weights = folder_of(tmp_path_factory.mktemp("mixed"), SeveralNet, mmout={"output_processor": "tensor"})
    network = SeveralNet(config_of(SeveralNet))
    network.load_state_dict(weights)
    forms = [
        lambda array: array,
        png,
        lambda array: {"pixel_values": torch.from_numpy(array)},
        lambda array: {"image_embeds": network.embed(torch.from_numpy(array)[None])[0]},
    ]
    with torch.inference_mode():
        inputs = [forms[number % 4](ARRAYS[number]) for number in ORDER]
        outputs = [network(torch.from_numpy(ARRAYS[number])[None]) for number in ORDER]
    return path, inputs, [{name: tensor[0].numpy() for name, tensor in output.items()} for output in outputs]


def assert_alike(outputs, expected):
    """Names, shapes, dtypes and bits."""
    for output, wanted in zip(outputs, expected, strict=True):
        assert list(output.arrays) == list(wanted)
        for name, array in output.arrays.items():
            np.testing.assert_array_equal(array, wanted[name], strict=True)


def test_forty_requests_of_five_shapes(model):
    """One call of ``LLM.generate``, in steps of eight, and forty calls of one input each."""
    path, inputs, expected = model
    llm = engine_here(path, max_num_seqs=8)
    together = [result.outputs for result in llm.generate(inputs, use_tqdm=False)]
    alone = [llm.generate([data], use_tqdm=False)[0].outputs for data in inputs]
    assert_alike(together, expected)
    assert_alike(alone, expected)


@pytest.mark.slow
async def test_forty_requests_of_five_shapes_to_the_asynchronous_engine(model):
    """The same for forty tasks that call ``AsyncLLM.generate`` in one moment; its engine has a process of its own."""
    path, inputs, expected = model
    assert_alike(await answers_of_async(path, inputs, max_num_seqs=8), expected)
