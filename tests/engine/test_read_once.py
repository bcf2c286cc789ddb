"""Which inputs cannot be opened a second time."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from vllm_mmout.models.inputs.input_forms import read_once

FILE, PICTURE = io.BytesIO(b"..."), Image.new("L", (4, 5))


@pytest.mark.parametrize("data", [FILE, [FILE, "a.tif"], {"B4": "a.tif", "B8": FILE}, [{"B4": FILE, "B8": PICTURE}]])
def test_a_file_that_the_caller_opened_is_read_once(data):
    """Wherever it stands in an input, a picture beside it or not."""
    assert read_once(data)


@pytest.mark.parametrize("data", ["a.tif", b"...", PICTURE, ["a.tif", PICTURE], {"pixel_values": np.zeros((1, 4, 5))}])
def test_anything_else_is_read_again(data):
    """Paths, bytes, pictures and arrays stay what they are."""
    assert not read_once(data)
