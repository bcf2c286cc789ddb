"""``LLM.generate`` on the real engine: every form of input, alone and in lists."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from scene_generator import make_scene, write_scene

from vllm_mmout import OutputParams
from vllm_mmout.errors import OptionError

pytestmark = pytest.mark.engine

SIX = (1, 2, 3, 3, 1, 2)
"""The bands of a picture, twice: as many as the model takes."""


@pytest.fixture(scope="module")
def scene():
    return make_scene(64, 96)


@pytest.fixture(scope="module")
def path(scene, tmp_path_factory):
    return write_scene(tmp_path_factory.mktemp("scene") / "a scene.tif", scene)


def classes(llm, data, **options):
    """The one result of one input, as an array [height, width]."""
    (result,) = llm.generate(data, OutputParams(**options) if options else None, use_tqdm=False)
    return result.outputs.array[0]


PLACED = {
    "a path as text": str,
    "a Path": Path,
    "a URL of a file": Path.as_uri,
    "bytes": Path.read_bytes,
    "a bytearray": lambda path: bytearray(path.read_bytes()),
    "a memoryview": lambda path: memoryview(path.read_bytes()),
    "a file in memory": lambda path: io.BytesIO(path.read_bytes()),
    "an open file": lambda path: path.open("rb"),
    "a prompt dict without a prompt": lambda path: {"multi_modal_data": {"image": str(path)}},
    "a prompt dict with a text": lambda path: {"prompt": "", "multi_modal_data": {"image": str(path)}},
    "a prompt dict with tokens": lambda path: {"prompt_token_ids": [1], "multi_modal_data": {"image": [path]}},
}


@pytest.mark.parametrize("form", PLACED.values(), ids=PLACED)
def test_a_file_may_come_in_any_form(llm, scene, path, form):
    """Each form of one GeoTIFF gives the same mask, on the same place."""
    expected = classes(llm, scene.array, nodata=scene.nodata)
    data = form(path)
    try:
        (result,) = llm.generate(data, use_tqdm=False)
    finally:
        if hasattr(data, "close"):
            data.close()
    np.testing.assert_array_equal(result.outputs.array, expected[None])
    assert result.outputs.crs == scene.crs
    assert result.outputs.transform == scene.transform
    assert set(np.unique(expected)) == {0, 1, 255}


def torch_tensor(array):
    import torch

    return torch.from_numpy(array)


ARRAYS = {
    "numpy": lambda array: array,
    "numpy, not contiguous": lambda array: np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 0, -1)), -1, 0),
    "numpy float32": lambda array: array.astype(np.float32),
    "numpy float64": lambda array: array.astype(np.float64),
    "torch": torch_tensor,
    "torch float32": lambda array: torch_tensor(array).float(),
    "torch that wants a gradient": lambda array: torch_tensor(array).float().requires_grad_(),
    "a prompt dict of an array": lambda array: {"multi_modal_data": {"image": array}},
    "a prompt dict of a list of one": lambda array: {"multi_modal_data": {"image": [array]}},
}


@pytest.mark.parametrize("form", ARRAYS.values(), ids=ARRAYS)
def test_an_array_may_come_in_any_form(llm, scene, path, form):
    """Arrays and tensors [bands, height, width] give the mask of the file they were read from, on no place."""
    expected = classes(llm, path)
    (result,) = llm.generate(form(scene.array), OutputParams(nodata=scene.nodata), use_tqdm=False)
    np.testing.assert_array_equal(result.outputs.array[0], expected)
    assert result.outputs.crs is None


def test_a_picture_is_its_bands(llm):
    """A PIL image gives what its array [bands, height, width] gives; six bands are chosen from its three."""
    from PIL import Image

    pixels = np.random.default_rng(1).integers(0, 255, (40, 30, 3), np.uint8)
    picture = Image.fromarray(pixels)
    stored = io.BytesIO()
    picture.save(stored, "PNG")
    expected = classes(llm, np.moveaxis(pixels, -1, 0), bands=SIX)
    assert set(np.unique(expected)) == {0, 1}
    for form in (picture, stored.getvalue(), picture.convert("RGBA")):
        np.testing.assert_array_equal(classes(llm, form, bands=SIX), expected)


def test_one_input_and_a_list_of_one_give_the_same(llm, path):
    """A result is in a list either way."""
    alone, listed, paired = (llm.generate(data, use_tqdm=False) for data in (path, [path], (path,)))
    assert len(alone) == len(listed) == len(paired) == 1
    np.testing.assert_array_equal(alone[0].outputs.array, listed[0].outputs.array)
    np.testing.assert_array_equal(alone[0].outputs.array, paired[0].outputs.array)


def test_no_input_gives_no_result(llm, sent):
    """An empty list is answered by an empty list."""
    assert llm.generate([], use_tqdm=False) == []
    assert sent == []


def test_results_stand_in_the_order_of_the_inputs(llm, scene):
    """Inputs of different shapes, more than run at once, come back each in its place."""
    sizes = [(8 + 3 * number, 40 - number) for number in range(19)]
    results = llm.generate([scene.array[:, :h, :w] for h, w in sizes], use_tqdm=False)
    assert [result.outputs.array.shape[1:] for result in results] == sizes
    assert len({result.request_id for result in results}) == len(sizes)


def test_params_are_one_for_all_or_one_each(llm, path):
    """One OutputParams serves every input; a list is paired with them."""
    all_alike = llm.generate([path, path], OutputParams(output="confidence"), use_tqdm=False)
    assert [result.outputs.array.dtype.name for result in all_alike] == ["float32", "float32"]
    own = [OutputParams(output="probabilities"), OutputParams(), OutputParams(output="confidence")]
    results = llm.generate([path] * 3, own, use_tqdm=False)
    assert [result.outputs.array.shape[0] for result in results] == [2, 1, 1]
    assert [result.outputs.array.dtype.name for result in results] == ["float32", "uint8", "float32"]


def test_params_that_cannot_be_paired_are_refused(llm, path, sent):
    """The counts of both are named."""
    with pytest.raises(OptionError, match="3 inputs and 2 params"):
        llm.generate([path] * 3, [OutputParams()] * 2, use_tqdm=False)
    assert sent == []


def test_sampling_params_are_refused(llm, path, sent):
    """Params of token models are an error that names the right class."""
    from vllm import SamplingParams

    with pytest.raises(OptionError, match="must be OutputParams, got SamplingParams"):
        llm.generate(path, SamplingParams(), use_tqdm=False)
    assert sent == []
