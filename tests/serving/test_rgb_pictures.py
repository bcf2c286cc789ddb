"""Pictures for models whose input vLLM prepares: what they are, and that no file is a failure of the server."""

from __future__ import annotations

import io
from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest
import rasterio
from PIL import Image

pytest.importorskip("vllm", reason="the service is of vLLM's server")

from vllm_mmout.errors import InputError
from vllm_mmout.params import OutputParams
from vllm_mmout.serving.inputs.rgb_pictures import rgb_picture
from vllm_mmout.serving.inputs.sources import Sources
from vllm_mmout.serving.inputs.uploads import Upload, named
from vllm_mmout.serving.options import ServingOptions
from vllm_mmout.serving.service import ForwardService

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")]
PIXELS = np.random.default_rng(3).integers(0, 256, (90, 80, 3), np.uint8)


def picture(kind: str, pixels: np.ndarray = PIXELS) -> bytes:
    made = io.BytesIO()
    Image.fromarray(pixels).save(made, kind)
    return made.getvalue()


def six_bands() -> bytes:
    with rasterio.io.MemoryFile() as memory:
        with memory.open(driver="GTiff", count=6, height=8, width=9, dtype="uint16") as file:
            file.write(np.ones((6, 8, 9), np.uint16))
        return memory.read()


def broken_chunk() -> bytes:
    """A PNG one of whose chunks has a name that none has."""
    return picture("PNG").replace(b"IDAT", b"\x01DAT", 1)


def opened(content: bytes):
    return named(io.BytesIO(content), "scene.tif")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF"])
def test_a_picture_is_rgb_as_pillow_has_it(kind):
    """Grey ones and those with alpha too."""
    for pixels in (PIXELS, PIXELS[..., 0], np.dstack([PIXELS, PIXELS[..., :1]])):
        if kind == "JPEG" and pixels.shape[2:] == (4,):
            continue
        content = picture(kind, pixels)
        wanted = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
        np.testing.assert_array_equal(np.asarray(rgb_picture(opened(content))), wanted)


WRONG = {
    "six bands": six_bands,
    "no picture": lambda: b"no picture at all",
    "a PNG that ends early": lambda: picture("PNG")[:2000],
    "a JPEG that ends early": lambda: picture("JPEG")[:1500],
    "a broken PNG": broken_chunk,
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_cannot_be_decoded_is_an_error_of_the_input(kind):
    """It names the file."""
    with pytest.raises(InputError, match=r"scene\.tif"):
        rgb_picture(opened(WRONG[kind]()))


def test_a_picture_above_pillows_limit_is_an_error_of_the_input(monkeypatch):
    """Where it only warns, and where it refuses."""
    for most in (PIXELS[..., 0].size - 1, PIXELS[..., 0].size // 2 - 1):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)
        with pytest.raises(InputError, match=r"scene\.tif is larger than pictures may be"):
            rgb_picture(opened(picture("PNG")))


@pytest.mark.parametrize("kind", ["six bands", "a PNG that ends early"])
def test_a_model_without_a_mapper_refuses_them(kind):
    """What the service opens for one is a picture, or an error of the input."""
    binding = SimpleNamespace(inputs=None, own_inputs=lambda params: None)
    known = {
        "engine": SimpleNamespace(output_processor=SimpleNamespace(binding=binding)),
        "sources": Sources(ServingOptions(), local_path=None, domains=None),
        "store": SimpleNamespace(shared=SimpleNamespace(enter=lambda: None)),
    }
    service = ForwardService(**{field.name: known.get(field.name) for field in fields(ForwardService)})

    def sent(content):
        return Upload("scene.tif", io.BytesIO(content), len(content))

    params = OutputParams()
    with service.opened(sent(picture("PNG")), params, "image") as found:
        np.testing.assert_array_equal(np.asarray(found["multi_modal_data"]["image"]), PIXELS)
    with pytest.raises(InputError, match=r"scene\.tif"), service.opened(sent(WRONG[kind]()), params, "image"):
        pytest.fail("it was opened")
