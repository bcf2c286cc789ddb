"""Models written for vLLM's first input registries, through the real engine (`support/first_registries_model.py`)."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from model_folders import engine_elsewhere, engine_here, runner_of, write_folder
from PIL import Image

from vllm_mmout import OutputParams

pytestmark = pytest.mark.engine
MODULE = "first_registries_model"
WEIGHTS = torch.tensor([1.0, 10.0, 100.0]).reshape(1, 3, 1, 1)
EXACT = {"do_resize": False, "do_rescale": False, "do_normalize": False}
"""Switches of an image processor that then hands on the pixels as they are."""


@pytest.fixture(scope="module", autouse=True)
def calls(tmp_path_factory):
    """The file in which the functions of the models leave their lines; the engine's processes inherit its name."""
    file = tmp_path_factory.mktemp("calls") / "calls.txt"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MMOUT_TEST_FIRST_REGISTRIES", str(file))
        yield file


@pytest.fixture(scope="module")
def write(tmp_path_factory):
    """Writes the folder of one of the module's classes, with an image processor of transformers."""
    from transformers import ViTImageProcessor

    def make(name, **switches):
        folder = tmp_path_factory.mktemp(name)
        ViTImageProcessor(**switches).save_pretrained(folder)
        table = {"model": f"{MODULE}:{name}", "output_processor": "tensor"}
        config = {"architectures": [name], "model_type": "mmout", "dtype": "float32", "mmout": table}
        return write_folder(folder, config, {"weight": WEIGHTS})

    return make


@pytest.fixture(scope="module")
def exact(write):
    """The folder of the class with the four decorators, whose image processor changes no pixel."""
    return write("FirstRegistriesNet", **EXACT)


@pytest.fixture(scope="module")
def first(calls, exact):
    """An engine of it in this process, and the lines that it left while it started."""
    llm = engine_here(exact)
    return llm, lines(calls)


@pytest.fixture
def pixels():
    return np.random.default_rng(5).integers(0, 256, (18, 30, 3), np.uint8)


def lines(file):
    """What was noted: who, by which process, with what."""
    noted = file.read_text().splitlines() if file.exists() else []
    return [(name, int(pid), told) for name, pid, told in (line.split(" ", 2) for line in noted)]


def weighted(pixels):
    """What the model gives for a picture [height, width, 3]."""
    return np.moveaxis(pixels, -1, 0).astype(np.float32) * WEIGHTS.numpy()[0]


def arrays(results):
    return [result.outputs.array for result in results]


def test_f_g_and_h_are_called_at_the_start(first):
    """With the names of the first registries on one class, its three functions are called while the engine starts."""
    _, noted = first
    told = {(name, said) for name, _, said in noted}
    assert ("f", "FirstRegistriesNet") in told
    assert ("g", "True {'image': 1}") in told
    assert ("h", "Image") in told


def test_the_model_is_tried_on_what_g_gave(first):
    """The first input of ``forward`` is the dummy of g, through h and the folder's image processor."""
    _, noted = first
    shapes = [said for name, _, said in noted if name == "forward"]
    assert shapes[0] == "[1, 3, 24, 40]"


def test_the_number_of_f_reaches_vllm(first):
    """Scheduler and model runner count with the tokens that f says."""
    llm, _ = first
    budget = runner_of(llm).mm_budget
    assert dict(budget.mm_max_toks_per_item) == {"image": 576}
    assert budget.processor.info.get_mm_max_tokens_per_item(8, {"image": 1}) == {"image": 576}


def test_what_h_changes_is_seen_in_the_result(first, pixels):
    """Every picture goes through h, whatever form it comes in; here h makes its negative."""
    llm, _ = first
    picture = Image.fromarray(pixels)
    given = arrays(llm.generate([picture, {"multi_modal_data": {"image": picture}}], use_tqdm=False))
    for array in given:
        np.testing.assert_array_equal(array, weighted(255 - pixels), strict=True)


def test_h_is_called_for_each_request_with_what_the_user_gave(calls, first, pixels):
    """An array and tensors reach h as they are, in this process; h may leave them alone."""
    llm, _ = first
    before = len(lines(calls))
    array = np.ascontiguousarray(np.moveaxis(pixels, -1, 0))
    inputs = [array, {"pixel_values": torch.from_numpy(array).float()}]
    given = arrays(llm.generate(inputs, use_tqdm=False))
    for one in given:
        np.testing.assert_array_equal(one, weighted(pixels), strict=True)
    called = [(pid, said) for name, pid, said in lines(calls)[before:] if name == "h"]
    assert called == [(os.getpid(), "ndarray"), (os.getpid(), "dict")]


def test_encode_goes_the_same_way(first, pixels):
    """``LLM.encode`` gives the raw tensor of the picture that h made."""
    llm, _ = first
    prompt = {"prompt_token_ids": [1], "multi_modal_data": {"image": Image.fromarray(pixels)}}
    (result,) = llm.encode(prompt, pooling_task="plugin", use_tqdm=False)
    np.testing.assert_array_equal(result.outputs.data.numpy(), weighted(255 - pixels), strict=True)


def test_without_a_mapper_the_folders_image_processor_maps(write, pixels):
    """``register_image_input_mapper()`` without a function: resized and scaled as transformers does it."""
    from transformers import ViTImageProcessor

    llm = engine_here(write("FirstRegistriesNet", size={"height": 20, "width": 16}))
    picture = Image.fromarray(pixels)
    processor = ViTImageProcessor(size={"height": 20, "width": 16})
    expected = processor(images=Image.fromarray(255 - pixels), return_tensors="pt")["pixel_values"] * WEIGHTS
    (array,) = arrays(llm.generate([picture], use_tqdm=False))
    np.testing.assert_array_equal(array, expected[0].numpy(), strict=True)


@pytest.mark.parametrize("name", ["FirstMapperNet", "FirstImageMapperNet"])
def test_a_mapper_of_the_first_registries(write, calls, tmp_path, pixels, name):
    """A function of a context and the data maps; a file reaches it opened, an array and a picture as they are."""
    llm = engine_here(write(name))
    before = len(lines(calls))
    file = tmp_path / "picture.png"
    Image.fromarray(pixels).save(file)
    array = np.ascontiguousarray(np.moveaxis(pixels, -1, 0))
    given = arrays(llm.generate([Image.fromarray(pixels), array, str(file), file.read_bytes()], use_tqdm=False))
    for one in given:
        np.testing.assert_array_equal(one, weighted(pixels), strict=True)
    assert [said for who, _, said in lines(calls)[before:] if who == "mapper"] == ["Image", "ndarray", "Image", "Image"]
    assert dict(runner_of(llm).mm_budget.mm_max_toks_per_item) == {"image": 12 if name == "FirstMapperNet" else 0}


@pytest.mark.slow
def test_the_four_decorators_across_processes(calls, exact, pixels):
    """The same class with the engine in processes of its own: f, g and h are called there too, the result is right."""
    before = len(lines(calls))
    picture = Image.fromarray(pixels)
    llm = engine_elsewhere(exact)
    started = len(lines(calls))
    try:
        given = llm.generate([picture, picture], OutputParams(), use_tqdm=False)
    finally:
        llm.llm_engine.engine_core.shutdown()
    for array in arrays(given):
        np.testing.assert_array_equal(array, weighted(255 - pixels), strict=True)
    elsewhere = {name for name, pid, _ in lines(calls)[before:] if pid != os.getpid()}
    assert elsewhere == {"f", "g", "h", "forward"}
    assert [name for name, pid, _ in lines(calls)[started:] if pid == os.getpid()] == ["h", "h"]
