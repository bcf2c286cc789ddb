"""VideoProcessor: what it gives is what ImageProcessor gives of each frame."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vllm_mmout.errors import DecodeError, OptionError, ReduceError
from vllm_mmout.outputs import VideoOutput
from vllm_mmout.params import OutputParams
from vllm_mmout.processors import ImageProcessor, VideoProcessor

torch = pytest.importorskip("torch", reason="processors are given torch tensors")
pytestmark = pytest.mark.engine

ANY = OutputParams()


def videos(processor, tensor):
    """What the requests of a batch get."""
    return [processor.decode(raw, ANY) for raw in processor.reduce(tensor, ANY)]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32])
def test_each_frame_is_what_the_image_processor_makes_of_it(dtype):
    """The same samples, of each dtype, by the same range of values."""
    values = torch.rand(2, 3, 3, 5, 7, generator=torch.Generator().manual_seed(1)) * 3 - 1
    batch = (values * 80 + 80).to(dtype) if dtype == torch.uint8 else values.to(dtype)
    pictures = ImageProcessor(value_range=(-1, 1)).reduce(batch.flatten(0, 1), ANY)
    made = videos(VideoProcessor(value_range=(-1, 1)), batch)
    np.testing.assert_array_equal(np.stack([one.frames for one in made]).reshape(pictures.shape), pictures.numpy())
    assert {type(one) for one in made} == {VideoOutput}


def test_only_bytes_travel():
    """One byte a sample leaves the device, laid out as it is received."""
    reduced = VideoProcessor().reduce(torch.rand(2, 4, 3, 8, 9), ANY)
    assert (reduced.dtype, reduced.shape, reduced.is_contiguous()) == (torch.uint8, (2, 4, 8, 9, 3), True)


@pytest.mark.parametrize(
    ("config", "options", "fps"),
    [({}, {}, 16), ({"fps": 24}, {}, 24), ({"fps": 24}, {"fps": 8.5}, 8.5), ({"fps": None}, {}, 16)],
)
def test_the_rate_is_that_of_the_option_or_of_the_model(config, options, fps):
    """The option first, then config.json, then 16 frames a second."""
    processor = VideoProcessor.from_config(config, options)
    assert videos(processor, torch.zeros(1, 2, 3, 4, 4))[0].fps == fps


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (torch.zeros(2, 3, 4, 4), "got float32 [2, 3, 4, 4]"),
        (torch.zeros(1, 3, 2, 4, 4), "got float32 [1, 3, 2, 4, 4]"),
        (torch.zeros(1, 2, 3, 4, 4, dtype=torch.int16), "uint8 or floating point"),
        ({"a": torch.zeros(1), "b": torch.zeros(1)}, "got a dict of 2 tensors (a, b)"),
    ],
)
def test_other_output_is_refused_with_what_is_taken(output, says):
    """An error says what a video must be, and what was given."""
    with pytest.raises(ReduceError, match=r"\[n, frames, 3, height, width\]") as caught:
        VideoProcessor().reduce(output, ANY)
    assert says in str(caught.value)


def test_decode_refuses_what_reduce_does_not_return():
    """A subclass with a reduce of its own is told to bring its own decode."""
    with pytest.raises(DecodeError, match="must override decode"):
        VideoProcessor().decode(torch.zeros(2, 4, 4, 3), ANY)


@pytest.mark.parametrize("options", [{"fps": 0}, {"fps": "fast"}, {"fps": math.nan}, {"fps": True}])
def test_a_rate_that_is_none_is_refused(options):
    """The option must be a number within bounds."""
    with pytest.raises(OptionError, match="fps must be a number"):
        VideoProcessor(**options)


def test_formats_are_known_before_the_model_runs():
    """A name of a file that tells none is refused before."""
    assert next(iter(VideoProcessor().formats(ANY).values())) == "mp4"
