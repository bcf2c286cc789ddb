"""Whether a processor of transformers only scales pictures, measured on processors as they are."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers", reason="the processors are those of transformers")
pytestmark = pytest.mark.engine

import numpy as np  # noqa: E402 - after the import that may skip
from transformers import CLIPImageProcessor, ConvNextImageProcessor, ViTImageProcessor  # noqa: E402 - as above

from vllm_mmout.models.inputs.make_mapper import keeps_extent  # noqa: E402 - as above


def pixels_of(processor):
    """The processor as a function of one picture."""
    from PIL import Image

    def process(picture):
        image = Image.fromarray(np.moveaxis(picture, 0, 2))
        return np.asarray(processor(images=image, return_tensors="np")["pixel_values"])[0]

    return process


@pytest.mark.parametrize(
    "processor",
    [
        ViTImageProcessor(),
        ViTImageProcessor(size={"height": 32, "width": 48}),
        ViTImageProcessor(do_resize=False),
        ViTImageProcessor(do_normalize=False, do_rescale=False),
        CLIPImageProcessor(do_center_crop=False),
    ],
    ids=["vit", "small", "as it is", "bytes", "clip without crop"],
)
def test_scaling_keeps_the_extent(processor):
    """Resized, normalised or not: the first and the last pixel stay at the ends."""
    assert keeps_extent(pixels_of(processor))


@pytest.mark.parametrize(
    "processor",
    [CLIPImageProcessor(), ConvNextImageProcessor(size={"shortest_edge": 224})],
    ids=["clip", "convnext, which has no switch for it"],
)
def test_cropping_does_not(processor):
    """What lies at the ends is gone, whatever the processor says of itself."""
    assert not keeps_extent(pixels_of(processor))


def padded(picture):
    return np.pad(picture, ((0, 0), (0, 8), (0, 8))).astype(np.float32)


def mirrored(picture):
    return picture[:, :, ::-1].astype(np.float32)


def pieces(picture):
    return np.stack([picture, picture]).astype(np.float32)


def refuses(picture):
    raise ValueError("other pictures only")


@pytest.mark.parametrize("process", [padded, mirrored, pieces, refuses])
def test_nor_do_borders_mirrors_and_pieces(process):
    """A border, another direction, a stack of pieces, and a processor that takes no such picture."""
    assert not keeps_extent(process)
