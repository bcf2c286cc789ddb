"""Windows that are read straight into arrays of several tiles."""

from __future__ import annotations

from io import BytesIO
from itertools import product

import numpy as np
import pytest
import tifffile
from geotiffs_by_rasterio import ARRAY, TILED, geotiff

from vllm_mmout.errors import InputError
from vllm_mmout.geo import Raster, TileGrid
from vllm_mmout.geo.raster import window_blocks
from vllm_mmout.geo.raster.opened import open_raster
from vllm_mmout.geo.raster.raster import Window
from vllm_mmout.geo.raster.window_blocks import bands_last

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

GRIDS = [
    [Window(row, col, 20, 30) for row in (0, 20, 40, 60, 76) for col in (0, 30, 60, 90, 98)],  # shifted at the edge
    [Window(row, col, 25, 25) for row in (0, 13, 71) for col in range(0, 104, 13)],  # overlapping
    [Window(row, col, 3, 7) for row in (5, 40) for col in range(0, 120, 20)],  # with gaps
    [Window(0, 0, 96, 128), Window(90, 1, 6, 2), Window(2, 100, 11, 28), Window(2, 60, 11, 28), Window(0, 0, 96, 128)],
]
MASK = np.random.default_rng(3).random((96, 128)) < 0.5
FILES = {
    "tiles": {**TILED, "interleave": "pixel"},
    "planes": {**TILED, "interleave": "band"},
    "strips": {"compress": "lzw", "blockysize": 1, "interleave": "pixel"},
    "one strip": {"interleave": "pixel"},
    "mask": {**TILED, "mask": MASK},
    "alpha": {**TILED, "photometric": "minisblack", "alpha": "yes"},
}


def made(file: str) -> bytes | Raster:
    """Return one of the files, or the same in memory."""
    return Raster(ARRAY, MASK) if file == "array" else geotiff(**FILES[file])


@pytest.mark.parametrize("bands", [None, [2], [3, 1, 2], [2, 2]], ids=str)
@pytest.mark.parametrize("file", [*FILES, "array"])
def test_tiles_are_the_windows(file: str, bands: list[int] | None) -> None:
    """Each tile has the pixels and the mask that `windows` gives, in the upper left corner of its slot."""
    with open_raster(made(file)) as opened:
        for windows, (count, empty) in product(GRIDS, ((1, np.empty), (4, bands_last), (99, np.empty))):
            size = (max(window.height for window in windows), max(window.width for window in windows) + 2)
            tiles = []
            for block, masks in opened.tiles(windows, bands, size=size, count=count, empty=empty):
                assert block.shape[2:] == size
                tiles += zip(block, masks, strict=True)
            assert len(tiles) == len(windows)
            for window, raster, (tile, mask) in zip(windows, opened.windows(windows, bands), tiles, strict=True):
                np.testing.assert_array_equal(tile[:, : window.height, : window.width], raster.array, strict=True)
                np.testing.assert_equal(mask, raster.mask)
                if file != "alpha":
                    picked = ARRAY[[band - 1 for band in bands or (1, 2, 3)]]
                    np.testing.assert_array_equal(raster.array, picked[:, window.rows, window.cols])


@pytest.mark.parametrize("file", ["tiles", "planes", "strips"])
def test_tiles_decode_each_segment_once(file: str) -> None:
    """Segments that several arrays need are copied to all of them."""
    with open_raster(made(file)) as opened:
        grid = TileGrid(*opened.size, 25, 5)
        windows = [grid.window(tile) for tile in range(len(grid))]
        assert sum(len(block) for block, _ in opened.tiles(windows, size=(25, 25), count=4)) == len(grid)
        assert set(opened.decoded.tolist()) == {1}


def test_segments_are_decoded_again_for_windows_that_come_much_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of windows on one segment do not have to be in memory at the same time."""
    windows = GRIDS[1] * 3
    monkeypatch.setattr(window_blocks, "_REACH", 5 * 25 * 25 * 3 * ARRAY.itemsize)
    with open_raster(made("tiles")) as opened:
        for window, raster in zip(windows, opened.windows(windows), strict=True):
            np.testing.assert_array_equal(raster.array, ARRAY[:, window.rows, window.cols])
        assert opened.decoded[opened.decoded > 0].min() >= 3


@pytest.mark.parametrize("count", [1, 3, 99])
def test_the_first_tile_that_a_damaged_segment_spoils_is_named(count: int) -> None:
    """Arrays before it are read, and the error has the index of the tile."""
    data = bytearray(geotiff(**FILES["tiles"]))
    with tifffile.TiffFile(BytesIO(data)) as file:
        page = file.pages[0]
        for damaged in (9, 14):
            at, length = page.dataoffsets[damaged], page.databytecounts[damaged]
            data[at : at + length] = bytes(length)
    windows = [Window(row, col, 16, 32) for row in range(0, 96, 16) for col in range(0, 128, 32)]
    with open_raster(bytes(data)) as opened:
        tiles = opened.tiles(windows, size=(16, 32), count=count)
        for number in range(9 // count):
            block, _ = next(tiles)
            for window, tile in zip(windows[number * count :], block, strict=False):
                np.testing.assert_array_equal(tile, ARRAY[:, window.rows, window.cols])
        with pytest.raises(InputError, match="the tile of rows 32 to 47, columns 32 to 63") as raised:
            next(tiles)
    assert raised.value.tile == 9


def test_a_window_larger_than_its_slot_is_refused() -> None:
    """The call says so before anything is read."""
    with open_raster(made("tiles")) as opened, pytest.raises(InputError, match="larger than an array of 10 x 10"):
        opened.tiles([Window(0, 0, 10, 11)], size=(10, 10), count=2)
