from __future__ import annotations

import math

import numpy as np
import pytest

from vllm_mmout.errors import DecodeError, OptionError, ReduceError
from vllm_mmout.params import OutputParams
from vllm_mmout.processors import ImageProcessor

torch = pytest.importorskip("torch", reason="processors are given torch tensors")
pytestmark = pytest.mark.engine

ANY = OutputParams()


def picture(processor, tensor):
    """What a request of a batch of one gets."""
    return processor.decode(processor.reduce(tensor, ANY)[0], ANY)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_byte_survives_the_way_over_floats(dtype):
    """A byte written as a fraction of 255 comes back as that byte, from each dtype that can tell 256 steps apart."""
    values = torch.arange(256) if dtype != torch.bfloat16 else torch.tensor([0, 64, 128, 255])
    grey = (values.double() / 255).to(dtype).reshape(1, 1, 4, -1)
    np.testing.assert_array_equal(picture(ImageProcessor(), grey).array, values.reshape(4, -1).numpy())


@pytest.mark.parametrize(
    ("value", "byte"),
    [
        (0.0, 0),
        (1.0, 255),
        (0.499 / 255, 0),
        (0.501 / 255, 1),
        (-0.1, 0),
        (1.1, 255),
        (math.nan, 0),
        (math.inf, 255),
        (-math.inf, 0),
    ],
)
def test_floats_are_rounded_and_clamped(value, byte):
    """What lies outside the range is black or white, what is no number black."""
    assert picture(ImageProcessor(), torch.full((1, 3, 2, 2), value)).array.tolist() == [[[byte] * 3] * 2] * 2


def test_the_range_of_values_is_an_option():
    """The ends of value_range are black and white."""
    grey = torch.tensor([-1.0, 0.0, 1.0, 3.0]).reshape(1, 1, 2, 2)
    assert picture(ImageProcessor(value_range=(-1, 1)), grey).array.tolist() == [[0, 128], [255, 255]]


@pytest.mark.parametrize(
    ("channels", "shape", "mode"), [(1, (5, 7), "L"), (3, (5, 7, 3), "RGB"), (4, (5, 7, 4), "RGBA")]
)
def test_bytes_pass_as_they_are(channels, shape, mode):
    """Grey, RGB and RGBA pictures of uint8 keep their samples, channels last."""
    tensor = torch.randint(0, 256, (1, channels, 5, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    result = picture(ImageProcessor(), tensor)
    assert result.array.shape == shape
    assert result.image.mode == mode
    np.testing.assert_array_equal(result.array.reshape(5, 7, channels), tensor[0].numpy().transpose(1, 2, 0))


def test_only_bytes_travel():
    """One byte a sample leaves the device, laid out as it is received."""
    reduced = ImageProcessor().reduce(torch.rand(4, 3, 8, 9), ANY)
    assert (reduced.dtype, reduced.shape, reduced.is_contiguous()) == (torch.uint8, (4, 8, 9, 3), True)


def test_a_batch_gives_what_its_members_give_alone():
    """Reducing several requests at once is reducing each."""
    batch = torch.randn(5, 3, 17, 13, generator=torch.Generator().manual_seed(2))
    processor = ImageProcessor(value_range=(-2, 2))
    alone = torch.cat([processor.reduce(batch[row : row + 1], ANY) for row in range(5)])
    assert torch.equal(processor.reduce(batch, ANY), alone)


def test_the_only_tensor_of_a_dict_is_taken():
    """A model may name its one output."""
    tensor = torch.rand(1, 1, 3, 3)
    np.testing.assert_array_equal(
        picture(ImageProcessor(), {"image": tensor}).array, picture(ImageProcessor(), tensor).array
    )


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (torch.zeros(3, 4, 4), "got float32 [3, 4, 4]"),
        (torch.zeros(1, 2, 4, 4), "with 1, 3 or 4 channels, got float32 [1, 2, 4, 4]"),
        (torch.zeros(1, 3, 4, 4, dtype=torch.int16), "uint8 or floating point"),
        (torch.zeros(1, 3, 4, 4, dtype=torch.bool), "got bool [1, 3, 4, 4]"),
        ({"a": torch.zeros(1), "b": torch.zeros(1)}, "got a dict of 2 tensors (a, b)"),
        ({}, "got a dict of 0 tensors (nothing)"),
    ],
)
def test_other_output_is_refused_with_what_is_taken(output, says):
    """An error says what an image must be, and what was given."""
    with pytest.raises(ReduceError, match=r"\[n, channels, height, width\]") as caught:
        ImageProcessor().reduce(output, ANY)
    assert says in str(caught.value)


@pytest.mark.parametrize("raw", [torch.zeros(4, 4, 3), torch.zeros(4, 4, 2, dtype=torch.uint8)])
def test_decode_refuses_what_reduce_does_not_return(raw):
    """A subclass with a reduce of its own is told to bring its own decode."""
    with pytest.raises(DecodeError, match="must override decode"):
        ImageProcessor().decode(raw, ANY)


@pytest.mark.parametrize(
    "value_range", [(1, 0), (0, 0), (0, math.nan), (-math.inf, 1), (1,), (0, 1, 2), 5, ("black", "white"), None]
)
def test_a_range_that_is_none_is_refused(value_range):
    """value_range must be two finite numbers, the lower first."""
    with pytest.raises(OptionError, match="value_range must be two"):
        ImageProcessor(value_range=value_range)
