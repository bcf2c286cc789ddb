"""PictureInputs: the functions of the author of a model that generates, without an engine."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="models are torch modules")
pytestmark = pytest.mark.engine

from vllm_mmout.errors import InputError, ModelError, RegistrationError  # noqa: E402 - after the import that may skip
from vllm_mmout.models.inputs.context import InputContext  # noqa: E402 - as above
from vllm_mmout.models.inputs.picture_inputs import PictureInputs  # noqa: E402 - as above
from vllm_mmout.registry import InputRegistry  # noqa: E402 - as above

REGISTRY = InputRegistry()
TWICE = REGISTRY.register_input_processor(
    lambda context, inputs: {
        **inputs,
        "prompt_token_ids": [t for t in inputs["prompt_token_ids"] for _ in range(1 + (t == 3))],
    }
)
MOST = REGISTRY.register_max_image_tokens(lambda context: 2)


def mapping(function):
    """Return a decorator that registers a mapper."""
    return REGISTRY.register_image_input_mapper(function)


ROWS = mapping(lambda context, data: {"pixel_values": np.asarray(data, np.float64)[None]})


def inputs_of(*decorators, folder="no-folder"):
    """Return the inputs of a class with decorators."""
    model = type("Net", (), {})
    for decorate in decorators:
        decorate(model)
    hf_config = SimpleNamespace(image_token_id=3)
    config = SimpleNamespace(
        hf_config=hf_config, model=str(folder), revision=None, max_model_len=8, dtype=torch.float16
    )
    return PictureInputs(model, InputContext(config))


def processor(**given):
    """Return a decorator of an input processor that changes some entries."""
    return REGISTRY.register_input_processor(lambda context, inputs: {**inputs, **given})


def test_a_prompt_is_expanded_and_a_picture_mapped():
    """One picture is passed as it is, several as a list. Floating-point numbers get the model's dtype."""
    seen = []

    def noted(context, inputs):
        seen.append(inputs["multi_modal_data"]["image"])
        return {"prompt_token_ids": [3, 3, *inputs["prompt_token_ids"][1:]], "multi_modal_data": {"image": "changed"}}

    expanded = inputs_of(REGISTRY.register_input_processor(noted), MOST, ROWS).expand([3, 5], ["picture"])
    assert (expanded.tokens, expanded.pictures, seen) == ([3, 3, 5], ["changed"], ["picture"])
    inputs = inputs_of(TWICE, MOST, ROWS)
    assert [place.offset for place in inputs.expand([3, 5, 3], ["a", "b"]).places] == [0, 3]
    (row,) = inputs.tensors([1, 2]).values()
    assert (row.tolist(), row.dtype) == ([1, 2], torch.float16)


@pytest.mark.parametrize(
    ("decorator", "says"),
    [
        (
            REGISTRY.register_input_processor(lambda context, inputs: 1 / 0),
            "input processor of Net failed: ZeroDivision",
        ),
        (REGISTRY.register_input_processor(lambda context, inputs: None), "must give a dict .*, got NoneType"),
        (processor(prompt_token_ids=["a"]), "must give a dict with prompt_token_ids"),
        (processor(multi_modal_data={"image": ["a", "b"]}), "gave 2 pictures for 1"),
        (
            processor(prompt_token_ids=[3, 3, 3]),
            "a picture takes 3 tokens, and register_max_image_tokens of Net says 2",
        ),
        (processor(multi_modal_placeholders={"image": [(0, 1)]}), "must have the numbers offset and length"),
    ],
)
def test_what_an_input_processor_must_not_give(decorator, says):
    """The error has the model's name and the fault."""
    with pytest.raises(InputError, match=says):
        inputs_of(decorator, MOST, ROWS).expand([3, 5], ["picture"])


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda context, data: {"pixel_values": torch.zeros(4, 8)}, "gave pixel_values of 4 rows for one picture"),
        (lambda context, data: {"pixel_values": 5}, "pixel_values .* must be a tensor or an array, got int"),
        (lambda context, data: {"pixel_values": ["a"]}, "must be a tensor or an array, got list"),
        (lambda context, data: torch.zeros(1), r"must give tensors by keyword of embed_multimodal, got Tensor \[1\]"),
        (lambda context, data: {}, "got a dict of nothing"),
        (lambda context, data: data["x"], "the input mapper of Net failed: TypeError"),
    ],
)
def test_what_a_mapper_must_not_give(function, says):
    """A mapper must give one row for each picture, by keyword."""
    with pytest.raises(InputError, match=says):
        inputs_of(TWICE, MOST, mapping(function)).tensors([1])


@pytest.mark.parametrize(
    ("decorators", "says"),
    [
        ([REGISTRY.register_input_mapper(dict), MOST], "by a factory for models of one forward"),
        ([ROWS], "the number of tokens of a picture is unknown"),
        ([ROWS, REGISTRY.register_max_image_tokens()], "says 0; a picture takes one token at least"),
        ([ROWS, MOST, processor(prompt_token_ids=[1])], "changes a prompt without pictures"),
        ([MOST], "no processor of transformers can be loaded from no-folder"),
    ],
)
def test_what_cannot_serve_is_refused_at_the_start(decorators, says):
    """The error comes before a process starts. An input processor that raises without pictures is allowed."""
    with pytest.raises(RegistrationError, match=says):
        inputs_of(*decorators).check()
    inputs_of(ROWS, MOST, REGISTRY.register_input_processor(lambda context, inputs: inputs["multi_modal_data"])).check()


def test_dummy_pictures_are_what_the_author_says():
    """There are ``count`` of them. Without dummy data or the folder's image processor there is an error."""
    largest = REGISTRY.register_dummy_data(lambda context, length, counts: (None, {"image": [f"{length} {counts}"]}))
    assert inputs_of(ROWS, largest).dummy(2) == ["8 {'image': 1}"] * 2
    with pytest.raises(ModelError, match=r"register_dummy_data"):
        inputs_of(ROWS).dummy(1)


def test_without_a_function_the_folders_image_processor_maps(tmp_path):
    """It maps as transformers does, and the dummy has its size. A folder with only a tokenizer is refused."""
    from small_llava import llava_processor

    made = llava_processor()
    made.save_pretrained(tmp_path / "llava")
    inputs = inputs_of(TWICE, MOST, REGISTRY.register_image_input_mapper(), folder=tmp_path / "llava")
    inputs.check()
    (picture,) = inputs.dummy(1)
    assert (picture.size, picture.mode) == ((16, 16), "RGB")
    expected = made.image_processor(picture, return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(inputs.tensors(picture)["pixel_values"], expected.half(), rtol=0, atol=0)
    made.tokenizer.save_pretrained(tmp_path / "text")
    with pytest.raises(RegistrationError, match=r"processor of transformers.* or put a preprocessor_config.json there"):
        inputs_of(TWICE, MOST, folder=tmp_path / "text").check()
