"""Rectangles of pixels of any size reach a GeoTIFF, and pixels of another kind are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vllm_mmout.errors import DecodeError
from vllm_mmout.outputs import RasterOutput
from vllm_mmout.processors.canvas import Canvas

CLASSES = RasterOutput(np.zeros((1, 1, 1), np.uint8), class_names=["land", "water"])


@pytest.mark.parametrize("sides", [(224, 4480), (512, 512), (100, 5200), (1300, 64)])
def test_rectangles_in_any_order_make_the_raster(sides: tuple[int, int], tmp_path: Path) -> None:
    """They may cover parts of blocks, several blocks, or whole rows of them."""
    expected = np.random.default_rng(0).integers(0, 2, (1, 1300, 5200)).astype(np.uint8)
    canvas = Canvas(tmp_path, expected.shape[1:], CLASSES)
    places = [(row, col) for row in range(0, 1300, sides[0]) for col in range(0, 5200, sides[1])]
    for row, col in np.random.default_rng(1).permutation(places).tolist():
        canvas.put_pixels(row, col, expected[:, row : row + sides[0], col : col + sides[1]])
    assert not canvas._unfinished
    raster = canvas.finish(None, {})
    assert np.array_equal(raster.array, expected)
    raster.close()


@pytest.mark.parametrize("pixels", [np.zeros((1, 600, 600), np.float32), np.zeros((3, 600, 600), np.uint8)])
def test_pixels_of_another_kind_are_refused(pixels: np.ndarray, tmp_path: Path) -> None:
    """Otherwise numpy would convert them, or repeat them for all bands."""
    canvas = Canvas(tmp_path, (600, 600), CLASSES)
    with pytest.raises(DecodeError, match=r"a tile has .* tile to arrive had 1 of uint8; give all tiles the same"):
        canvas.put_pixels(0, 0, pixels)
    canvas.discard()
    assert list(tmp_path.iterdir()) == []
