"""Sizes of pictures: what is asked in pixels becomes rows and columns of cells."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("vllm", reason="errors of the server")

from token_service import PIXELS, image_processor

from vllm_mmout import ImageOutput
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.wings.tokens.serving.sizes import Sizes

pytestmark = pytest.mark.engine


def sizes(prompt=None, **layout):
    """Of a processor."""
    from vllm_mmout.wings.tokens.processors.prompt_template import PromptTemplate

    processor = image_processor(prompt, **layout)
    return Sizes(processor, processor.prompt or PromptTemplate.parse(None, "image"))


def test_a_fixed_grid_has_its_own_size():
    """Auto, and the width and height of grid times cell."""
    found = sizes(grid=(4, 6), row_end=None)
    assert found.grid("auto") == (4, 6)
    assert found.grid(f"{6 * PIXELS}x{4 * PIXELS}") == (4, 6)
    with pytest.raises(ApiError, match="size must be auto or 18x12, got 12x18: all pictures") as caught:
        found.grid("12x18")
    assert (caught.value.status, caught.value.param) == (400, "size")


def test_rows_that_end_have_any_size_that_the_prompt_tells():
    """Width becomes columns, height rows; what is no multiple of a cell is refused."""
    found = sizes("{prompt}{rows:5}{columns:7}")
    assert found.grid("auto") == (5, 7)
    assert found.grid("30x12") == (4, 10)
    with pytest.raises(ApiError, match="a width in steps of 3 and a height in steps of 3 pixels, got 31x12"):
        found.grid("31x12")


def test_a_model_that_is_told_needs_to_be_told():
    """Without a default of the template auto says nothing."""
    with pytest.raises(ApiError, match="size must be WIDTHxHEIGHT: the prompt of this model must tell"):
        sizes("{prompt}{rows}{columns}").grid("auto")


def test_a_model_that_decides_itself_takes_no_size():
    """Its prompt has no place for one."""
    assert sizes().grid("auto") is None
    with pytest.raises(ApiError, match="size must be auto, got 30x12: this model itself decides"):
        sizes().grid("30x12")


@pytest.mark.parametrize("size", ["", "big", "0x12", "-3x3", "30 x 12", "30x12x3", "3e1x12", "30x", "٣x٣", "1000000x3"])
def test_what_is_no_size_is_refused(size):
    """The message shows it."""
    with pytest.raises(ApiError, match="size must be auto or WIDTHxHEIGHT"):
        sizes("{prompt}{rows}{columns}").grid(size)


def test_the_decoder_is_measured_once(monkeypatch):
    """By one picture, and only where a size is asked for."""
    found = sizes("{prompt}{rows:5}{columns:7}")
    calls = []
    decode = found._processor.decode
    monkeypatch.setattr(found._processor, "decode", lambda *given: calls.append(given) or decode(*given))
    found.grid("auto")
    assert not calls
    found.grid("30x12")
    found.grid("12x12")
    assert len(calls) == 1


def test_a_decoder_of_uneven_cells_has_auto_alone(monkeypatch):
    """Its pictures are no whole number of pixels a cell."""
    found, calls = sizes("{prompt}{rows:5}{columns:7}"), []
    uneven = ImageOutput(np.zeros((5, 6, 3), np.uint8))
    monkeypatch.setattr(found._processor, "decode", lambda *given: calls.append(given) or uneven)
    assert found.grid("auto") == (5, 7)
    for _ in range(2):
        with pytest.raises(
            ApiError, match=r"size must be auto: .* a picture of 6 x 5 pixels from .* codes, which is not"
        ) as caught:
            found.grid("30x12")
        assert (caught.value.status, caught.value.param) == (400, "size")
    assert len(calls) == 1
