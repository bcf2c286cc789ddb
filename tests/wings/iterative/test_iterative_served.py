"""Pipelines of diffusers behind OpenAI's image routes, by OpenAI's client as it is; diffusers itself is the oracle."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from model_folders import engine_here
from PIL import Image
from serving import served
from text_service import EngineHere, text_app
from token_service import openai_client

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
openai = pytest.importorskip("openai", reason="the client is OpenAI's")

import small_pipelines  # noqa: E402 - after the imports that may skip

pytestmark = [pytest.mark.engine]
SIDE = 32


@pytest.fixture(scope="session")
def draws_server(tmp_path_factory):
    """Give a pipeline that makes pictures of texts, and OpenAI's client of a server of its folder."""
    pipeline, folder = saved("StableDiffusionPipeline", tmp_path_factory)
    with (
        served(folder, "--served-model-name", "pipeline") as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield pipeline, client


@pytest.fixture(scope="module")
def fills(tmp_path_factory):
    """Give a pipeline that fills in a part of a picture, and OpenAI's client of an app around an engine of it."""
    pipeline, folder = saved("StableDiffusionInpaintPipeline", tmp_path_factory)
    with openai_client(text_app(EngineHere(engine_here(folder)), "pipeline")) as client:
        yield pipeline, client


def saved(name, tmp_path_factory):
    """Return a small pipeline, and its folder."""
    pipeline, folder = small_pipelines.pipeline(name), tmp_path_factory.mktemp(name)
    pipeline.save_pretrained(folder)
    return pipeline, folder


def pixels(text):
    """Of a picture in base64."""
    with Image.open(io.BytesIO(base64.b64decode(text))) as picture:
        return np.asarray(picture.convert("RGB")).astype(int)


def png_of(width, height):
    """The bytes of a black picture."""
    buffer = io.BytesIO()
    Image.new("L", (width, height)).save(buffer, "png")
    return buffer.getvalue()


def alone(pipeline, seed, **arguments):
    """What diffusers makes of a request."""
    (own,) = pipeline(**arguments, generator=torch.Generator().manual_seed(seed)).images
    return np.asarray(own).astype(int)


def test_several_pictures_of_a_text(draws_server):
    """Each of the next seed, of the size and the steps that were asked for, as diffusers makes it."""
    pipeline, client = draws_server
    asked = {"num_inference_steps": 5, "guidance_scale": 3.0, "negative_prompt": "fog", "seed": 11}
    answer = client.images.generate(prompt="a boat", n=3, size="48x32", extra_body=asked)
    assert answer.size == "48x32"
    said = {name: value for name, value in asked.items() if name != "seed"}
    for number, entry in enumerate(answer.data):
        own = alone(pipeline, 11 + number, prompt="a boat", height=32, width=48, **said)
        assert np.abs(pixels(entry.b64_json) - own).max() <= 1


def test_a_picture_that_grows(draws_server):
    """Previews come from real steps, before the picture, which is the one without them."""
    pipeline, client = draws_server
    asked = {"num_inference_steps": 8, "seed": 3}
    size = f"{SIDE}x{SIDE}"
    events = [*client.images.generate(prompt="a boat", size=size, stream=True, partial_images=3, extra_body=asked)]
    kinds = [event.type.removeprefix("image_generation.") for event in events]
    assert kinds == ["partial_image", "partial_image", "partial_image", "completed"]
    shown = [pixels(event.b64_json) for event in events]
    own = alone(pipeline, 3, prompt="a boat", height=SIDE, width=SIDE, num_inference_steps=8)
    apart = [np.abs(picture - own).mean() for picture in shown]
    assert np.abs(shown[-1] - own).max() <= 1
    assert apart[0] > apart[1] > apart[2] > apart[3]


def test_a_part_of_a_picture_anew(fills):
    """Where the mask is white; a form with files, as OpenAI's client sends one."""
    pipeline, client = fills
    source = np.random.default_rng(2).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    mask = np.zeros((SIDE, SIDE), np.uint8)
    mask[8:24, 8:24] = 255
    files = {}
    for name, array in (("image", source), ("mask", mask)):
        files[name] = io.BytesIO()
        Image.fromarray(array).save(files[name], "png")
        files[name].name = f"{name}.png"
        files[name].seek(0)
    size = f"{SIDE}x{SIDE}"
    asked = {"num_inference_steps": 4, "strength": 1.0, "seed": 5}
    answer = client.images.edit(**files, prompt="a lake", size=size, extra_body=asked)
    given = {"image": Image.fromarray(source), "mask_image": Image.fromarray(mask)}
    own = alone(pipeline, 5, prompt="a lake", **given, height=SIDE, width=SIDE, num_inference_steps=4, strength=1.0)
    assert np.abs(pixels(answer.data[0].b64_json) - own).max() <= 1


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"n": 11}, "n"),
        ({"n": 2, "stream": True}, "n"),
        ({"n": 2, "extra_body": {"seed": 2**63 - 1}}, "seed"),
        ({"size": "33x32"}, None),
        ({"size": "2048x1032"}, "size"),
        ({"extra_body": {"num_inference_steps": 1001}}, "num_inference_steps"),
        ({"extra_body": {"num_inference_steps": 0}}, "num_inference_steps"),
        ({"extra_body": {"strength": 0.5}}, "strength"),
        ({"extra_body": {"window": [0, 0, 4, 4]}}, None),
        ({"extra_body": {"mask": "data:,x"}}, "mask"),
    ],
)
def test_what_cannot_be_had_is_named(draws_server, asked, param):
    """An error of 400; nothing is run."""
    _, client = draws_server
    with pytest.raises(openai.BadRequestError) as refused:
        client.images.generate(prompt="a boat", **{"size": "32x32"} | asked)
    assert param is None or refused.value.param == param


def test_a_picture_above_the_limit_needs_a_size(fills):
    """A result is as large as the picture that it is made of, unless the request says its size."""
    files = {name: (f"{name}.png", png_of(1500, 1400), "image/png") for name in ("image", "mask")}
    with pytest.raises(openai.BadRequestError, match=r"1400 x 1500 pixels, .* 2097152, .*--mmout-max-made-pixels"):
        fills[1].images.edit(**files, prompt="a lake", extra_body={"num_inference_steps": 1})


def test_a_model_of_pictures_needs_one(fills):
    """A prompt alone is refused."""
    with pytest.raises(openai.BadRequestError):
        fills[1].images.generate(prompt="a lake", size="32x32")


def test_a_model_of_texts_takes_no_picture(draws_server):
    """The error names the route that takes a text."""
    with pytest.raises(openai.BadRequestError, match="takes no pictures; use /v1/images/generations"):
        draws_server[1].images.edit(image=("a.png", b"x", "image/png"), prompt="a lake")
