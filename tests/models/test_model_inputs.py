"""ModelInputs: raw data, tensors and embeddings to the tensors of ``forward``, without an engine."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="models are torch modules")
pytestmark = pytest.mark.engine

from vllm_mmout.errors import InputError, OptionError, RegistrationError  # noqa: E402 - after the import that may skip
from vllm_mmout.models.inputs.context import DummyData, InputContext  # noqa: E402 - as above
from vllm_mmout.models.inputs.mapper import (  # noqa: E402 - as above
    MappedInput,
    RasterMapper,
    TensorSpec,
)
from vllm_mmout.models.inputs.model_inputs import ModelInputs  # noqa: E402 - as above
from vllm_mmout.outputs.base import Source  # noqa: E402 - as above
from vllm_mmout.params import OutputParams  # noqa: E402 - as above
from vllm_mmout.registry import InputRegistry  # noqa: E402 - as above

REGISTRY = InputRegistry()
CONFIG = {"architectures": ["Net"], "bands": ["red", "green"], "max_size": 16}
PIXELS = np.arange(2 * 4 * 5, dtype=np.float32).reshape(2, 4, 5)


class Net:
    """A model without weights."""

    def forward(self, pixel_values=None, image_embeds=None):
        """Not run."""


def context(config=None):
    """The context of a model with a ``config.json``; vLLM's own object has these and more."""
    hf_config = SimpleNamespace(to_dict=lambda: dict(CONFIG if config is None else config))
    return InputContext(SimpleNamespace(hf_config=hf_config, model="folder", revision=None, max_model_len=8))


def model(*decorators, forward=None):
    """A subclass of Net with decorators."""
    made = type("Net", (Net,), {} if forward is None else {"forward": forward})
    for decorator in decorators:
        decorator(made)
    return made


def inputs_of(*decorators, config=None, forward=None):
    """The input side of such a class."""
    return ModelInputs(model(*decorators, forward=forward), context(config))


RASTER = REGISTRY.register_input_mapper(RasterMapper.from_config)


def mapping(mapper):
    """A decorator that registers a mapper which needs no config."""
    return REGISTRY.register_input_mapper(lambda _: mapper)


def test_raw_and_tensors_are_the_same():
    """What the mapper makes of an array is what the array is as a tensor of that keyword."""
    inputs = inputs_of(RASTER)
    for data in (PIXELS, {"pixel_values": PIXELS}, {"pixel_values": torch.from_numpy(PIXELS)}):
        (tensor,) = inputs.map(data, OutputParams()).tensors.values()
        np.testing.assert_array_equal(np.asarray(tensor), PIXELS)


def test_a_dict_of_other_keys_is_the_mappers_own():
    """One that is no tensors by keyword of forward reaches the author's mapper as it is; one that is does not."""

    def mapper(data, params):
        return {"pixel_values": np.full((2, 4, 5), len(data["text"]), np.float32)}

    inputs = inputs_of(mapping(mapper))
    (tensor,) = inputs.map({"text": "three words here"}, OutputParams()).tensors.values()
    assert tensor[0, 0, 0] == 16
    (tensor,) = inputs.map({"pixel_values": PIXELS}, OutputParams()).tensors.values()
    np.testing.assert_array_equal(tensor, PIXELS)


def test_embeddings_are_tensors_of_their_keyword():
    """A keyword of forward that the mapper does not know goes as it is."""
    mapped = inputs_of(RASTER).map({"image_embeds": torch.ones(3, 7)}, OutputParams())
    assert list(mapped.tensors) == ["image_embeds"]
    assert mapped.source.size is None


def test_the_features_of_a_processor_lose_their_batch_axis():
    """A BatchFeature of transformers has one input on axis 0; two are two requests."""
    from transformers import BatchFeature

    inputs = inputs_of(RASTER)
    mapped = inputs.map(BatchFeature({"pixel_values": PIXELS[None]}), OutputParams())
    np.testing.assert_array_equal(mapped.tensors["pixel_values"], PIXELS)
    with pytest.raises(InputError, match=r"pixel_values of a BatchFeature must have a batch axis of size 1, got \[2"):
        inputs.map(BatchFeature({"pixel_values": np.stack([PIXELS, PIXELS])}), OutputParams())


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"pixel_values": PIXELS[:1]}, r"pixel_values must be float32 .*\[2, 1..16, 1..16\], got float32 \[1, 4, 5\]"),
        ({"pixel_values": PIXELS[None]}, "without the batch axis"),
        ({"pixel_values": PIXELS.astype(np.float64)}, "got float64"),
        ({"pixel_values": "text"}, "pixel_values must be a tensor or an array of numbers, got str"),
        ({"pixel_values": [object()]}, "got list"),
        ({"image_embeds": np.zeros((0, 4))}, r"image_embeds is empty: its shape is \[0, 4\]"),
        ({"pixels": PIXELS}, "it does not know 'pixels'"),
        ({}, "got nothing"),
        (5, "an input must be a path"),
    ],
)
def test_what_the_model_cannot_take_is_refused(data, says):
    """Wrong shapes, dtypes, names and kinds are errors of the input, which say what is right."""
    with pytest.raises(InputError, match=says):
        inputs_of(RASTER).map(data, OutputParams())


@pytest.mark.parametrize("option", [{"bands": [1, 2]}, {"indices": [0, 1]}, {"nodata": 0}])
def test_options_of_reading_are_refused_for_tensors(option):
    """Tensors are read already: which bands, can no more be said."""
    with pytest.raises(OptionError, match=rf"{next(iter(option))} says how a raster is read; this input is tensors"):
        inputs_of(RASTER).map({"pixel_values": PIXELS}, OutputParams(**option))


def test_a_mapper_may_give_a_dict_or_a_mapped_input():
    """Both are taken, the latter with where the input lies."""
    assert list(inputs_of(mapping(lambda data, _: {"pixel_values": data})).map(PIXELS, OutputParams()).tensors)
    source = Source(size=(4, 5))
    mapped = inputs_of(mapping(lambda data, _: MappedInput({"pixel_values": data}, source))).map(PIXELS, OutputParams())
    assert mapped.source is source


@pytest.mark.parametrize(
    ("mapper", "says"),
    [
        (lambda data, params: data, "mapper of Net must give a MappedInput or a dict of tensors.*, got ndarray"),
        (lambda data, params: {"pixels": data}, "it does not know 'pixels'"),
        (lambda data, params: {}, "got nothing"),
        (
            lambda data, params: {"pixel_values": None},
            "pixel_values must be a tensor or an array of numbers, got NoneT",
        ),
        (
            lambda data, params: data["nothing"],
            "the input mapper of Net failed: IndexError.*; correct the input or the",
        ),
        (lambda data: data, "the input mapper of Net failed: TypeError"),
    ],
)
def test_what_a_mapper_does_wrong_is_an_error_of_the_input(mapper, says):
    """It names the mapper, says what it gave or raised, and keeps the exception as its cause."""
    with pytest.raises(InputError, match=says):
        inputs_of(mapping(mapper)).map(PIXELS, OutputParams())


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit("left")])
def test_a_mapper_ends_no_process(error):
    """An exception that is no Exception is an error of the input, too."""

    def leaves(data, params):
        raise error

    with pytest.raises(InputError, match=f"the input mapper of Net failed: {type(error).__name__}"):
        inputs_of(mapping(leaves)).map(PIXELS, OutputParams())


def test_an_error_of_a_mapper_for_the_user_passes_as_it_is():
    """An InputError is what a mapper raises on purpose."""

    def picky(data, params):
        raise InputError("too dark")

    with pytest.raises(InputError, match=r"^too dark$"):
        inputs_of(mapping(picky)).map(PIXELS, OutputParams())


@pytest.mark.parametrize(
    ("decorator", "error", "says"),
    [
        (
            REGISTRY.register_input_mapper(lambda config: config["x"]),
            RegistrationError,
            "factory of Net failed: KeyError",
        ),
        (REGISTRY.register_input_mapper(lambda config: None), RegistrationError, "factory of Net must give a function"),
        (RASTER, OptionError, '"bands" in config.json must be a list'),
    ],
)
def test_a_mapper_that_cannot_be_made_is_refused_at_the_start(decorator, error, says):
    """Before any request: the error names the model and what its factory did."""
    with pytest.raises(error, match=says):
        inputs_of(decorator, config={})


def test_a_mapper_must_give_keywords_of_forward():
    """What the mapper declares is compared with the signature at the start."""
    with pytest.raises(RegistrationError, match="the input mapper of Net gives 'pixel_values', its forward takes x"):
        inputs_of(RASTER, forward=lambda self, x: None)


def test_a_function_of_the_first_registries_gets_context_and_opened_data(tmp_path):
    """A file comes as a PIL image, an array as it is; its first argument knows the configuration."""
    from PIL import Image

    Image.new("RGB", (5, 4), (1, 2, 3)).save(tmp_path / "a.png")
    seen = []

    def function(given, data):
        seen.append(data)
        assert given.get_hf_config().to_dict() == CONFIG
        return {"pixel_values": np.asarray(data, np.float32)}

    inputs = inputs_of(REGISTRY.register_image_input_mapper(function))
    assert inputs.map(tmp_path / "a.png", OutputParams()).tensors["pixel_values"].shape == (4, 5, 3)
    inputs.map(PIXELS, OutputParams())
    assert isinstance(seen[0], Image.Image)
    assert seen[1] is PIXELS
    with pytest.raises(OptionError, match="bands says how a raster is read; the input mapper of Net does not know it"):
        inputs.map(PIXELS, OutputParams(bands=[1]))


def test_an_input_processor_changes_what_the_mapper_gets():
    """It sees the prompt and the data as the user gave it, and gives both."""

    def halve(given, inputs):
        assert inputs["prompt_token_ids"] == [1]
        return {**inputs, "multi_modal_data": {"image": inputs["multi_modal_data"]["image"] / 2}}

    inputs = inputs_of(RASTER, REGISTRY.register_input_processor(halve))
    np.testing.assert_array_equal(inputs.map(PIXELS, OutputParams()).tensors["pixel_values"], PIXELS / 2)


@pytest.mark.parametrize("given", [None, {}, {"multi_modal_data": {}}])
def test_an_input_processor_that_gives_nothing_is_named(given):
    """What it should have given is missing: an error of the input, not a crash."""
    inputs = inputs_of(RASTER, REGISTRY.register_input_processor(lambda context, inputs: given))
    with pytest.raises(InputError, match="the input processor of Net failed"):
        inputs.map(PIXELS, OutputParams())


@pytest.mark.parametrize(("registered", "expected"), [(5, 5), (lambda given: 7, 7), (0, 0)])
def test_max_tokens(registered, expected):
    """A number or what a function gives."""
    assert inputs_of(RASTER, REGISTRY.register_max_image_tokens(registered)).max_tokens() == expected


def test_without_max_tokens_there_are_none():
    """No placeholder tokens stand for an input."""
    assert inputs_of(RASTER).max_tokens() == 0


@pytest.mark.parametrize("value", [-1, 2.5, None, "7", True])
def test_max_tokens_must_be_a_number(value):
    """What a function gives is checked."""
    with pytest.raises(RegistrationError, match="max tokens of Net must be a number from 0 on"):
        inputs_of(RASTER, REGISTRY.register_max_tokens(lambda given: value)).max_tokens()


DUMMY = np.ones((2, 3, 3), np.float32)


@pytest.mark.parametrize(
    "made",
    [
        DummyData(None, {"image": DUMMY}),
        ("sequence", {"image": DUMMY}),
        {"image": DUMMY},
        {"multi_modal_data": {"image": DUMMY}},
        {"seq_data": "sequence", "multi_modal_data": {"image": [DUMMY]}, "multi_modal_placeholders": None},
        DummyData(multi_modal_data={"image": [DUMMY]}),
    ],
)
def test_dummy_data_in_each_form_of_the_first_registries(made):
    """A named tuple, a tuple and a dict mean the same; the function is told the length and how many."""

    def factory(given, seq_len, mm_counts):
        assert (seq_len, mm_counts) == (8, {"image": 1})
        return made

    assert inputs_of(RASTER, REGISTRY.register_dummy_data(factory)).dummy() is DUMMY


def test_dummy_data_may_be_the_tensors_of_forward():
    """In place of an image the keyword tensors are taken, alone or where the image would be."""
    tensors = {"pixel_values": DUMMY}
    for made in (tensors, DummyData(None, tensors), {"multi_modal_data": tensors}):
        assert inputs_of(RASTER, REGISTRY.register_dummy_data(lambda *_, made=made: made)).dummy() is tensors


@pytest.mark.parametrize("made", [None, {"multi_modal_data": None}, DummyData("sequence")])
def test_dummy_data_that_is_none_is_refused(made):
    """The error says what it must give."""
    with pytest.raises(RegistrationError, match="the dummy data of Net must be DummyData with multi_modal_data"):
        inputs_of(RASTER, REGISTRY.register_dummy_data(lambda *_: made)).dummy()


def test_without_a_function_the_dummy_is_the_largest_that_the_mapper_takes():
    """What a mapper says of its inputs is enough; one that says nothing has no dummy."""
    dummy = inputs_of(RASTER).dummy()["pixel_values"]
    assert (dummy.shape, dummy.dtype) == ((2, 16, 16), np.float32)
    assert inputs_of(mapping(lambda data, params: {"pixel_values": data})).dummy() is None


def test_a_mapper_of_ones_own_may_declare_its_inputs():
    """With ``inputs`` a mapper's tensors are checked, whoever made them."""

    class Mapper:
        inputs = {"pixel_values": TensorSpec((1, 2), ("int64",))}  # noqa: RUF012 - read only

        def __call__(self, data, params):
            return {"pixel_values": np.asarray(data)}

    inputs = inputs_of(mapping(Mapper()))
    inputs.map([[1, 2]], OutputParams())
    with pytest.raises(InputError, match=r"pixel_values must be int64 \[1, 2\], got int64 \[1, 3\]"):
        inputs.map([[1, 2, 3]], OutputParams())
