"""Where tiles lie."""

from __future__ import annotations

import numpy as np
import pytest

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo.tiling.grid import TileGrid, reflected
from vllm_mmout.processors import Window


@pytest.mark.parametrize(
    ("size", "tile", "overlap", "edge", "starts"),
    [
        (10, 10, 0, "shift", (0,)),
        (7, 10, 5, "shift", (0,)),
        (7, 10, 5, "pad", (0,)),
        (20, 10, 0, "shift", (0, 10)),
        (21, 10, 0, "shift", (0, 10, 11)),
        (21, 10, 0, "pad", (0, 10, 20)),
        (18, 10, 2, "shift", (0, 8)),
        (19, 10, 2, "shift", (0, 8, 9)),
        (19, 10, 2, "pad", (0, 8, 16)),
        (3, 1, 0, "shift", (0, 1, 2)),
    ],
)
def test_where_tiles_begin(size, tile, overlap, edge, starts):
    """Tiles begin a tile less the overlap apart, the last one where the edge says, and none is there for nothing."""
    assert TileGrid(size, 1, tile, overlap, edge).rows == starts
    assert TileGrid(1, size, tile, overlap, edge).cols == starts


def test_windows_go_row_by_row():
    """Tiles are numbered row by row, and their windows end with the scene."""
    grid = TileGrid(5, 9, 4, 0, "pad")
    assert [grid.window(index) for index in range(len(grid))] == [
        Window(0, 0, 4, 4),
        Window(0, 4, 4, 4),
        Window(0, 8, 4, 1),
        Window(4, 0, 1, 4),
        Window(4, 4, 1, 4),
        Window(4, 8, 1, 1),
    ]
    assert [grid.padding(index) for index in (0, 2, 3, 5)] == [(0, 0), (0, 3), (3, 0), (3, 3)]


def test_tiles_need_not_be_square():
    """Rows go by their height, columns by their width; both are at least twice the overlap."""
    grid = TileGrid(10, 20, 4, 1, tile_width=8)
    assert (grid.rows, grid.cols, grid.said) == ((0, 3, 6), (0, 7, 12), "4 x 8")
    assert grid.window(len(grid) - 1) == Window(6, 12, 4, 8)
    assert TileGrid(3, 5, 4, 0, "pad", 8).padding(0) == (1, 3)
    with pytest.raises(OptionError, match="at most half a tile, got 3 for tiles of 8 x 4"):
        TileGrid(10, 20, 8, 3, tile_width=4)


def test_shifted_tiles_are_whole_and_not_padded():
    """With "shift" all tiles have one size, also in a scene that is smaller than a tile."""
    grid = TileGrid(3, 9, 4)
    assert {(window.height, window.width) for window in map(grid.window, range(len(grid)))} == {(3, 4)}
    assert {grid.padding(index) for index in range(len(grid))} == {(0, 0)}


@pytest.mark.parametrize("index", [-1, 6])
def test_there_is_no_tile_beyond_the_last(index):
    """Numbers beyond the grid are an error, negative ones too."""
    with pytest.raises(IndexError, match=f"tile {index} of 6"):
        TileGrid(5, 9, 4).window(index)


def test_groups_are_columns_read_row_by_row():
    """Groups of columns hold each tile once, row by row within a group."""
    grid = TileGrid(8, 20, 4)  # 2 x 5 tiles
    assert list(grid.groups(2)) == [[0, 1, 5, 6], [2, 3, 7, 8], [4, 9]]
    assert list(grid.groups(9)) == [list(range(10))]


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((0, 5, 4), InputError, "got 0 rows and 5 columns"),
        ((5, 5, 0), OptionError, "tile must be 1 or more pixels, got 0"),
        ((5, 5, 4, 3), OptionError, "at most half a tile, got 3 for tiles of 4"),
        ((5, 5, 4, -1), OptionError, "got -1 for tiles of 4"),
        ((5, 5, 4, 0, "wrap"), OptionError, '"shift" or "pad"'),
    ],
)
def test_impossible_grids_are_refused(arguments, error, says):
    """The error says what must be otherwise."""
    with pytest.raises(error, match=says):
        TileGrid(*arguments)


@pytest.mark.parametrize("shape", [(2, 3, 5), (1, 1, 4), (2, 6, 1), (1, 1, 1), (4, 3)])
@pytest.mark.parametrize("padding", [(0, 0), (1, 0), (0, 2), (4, 4), (13, 31)])
def test_reflection_is_that_of_numpy(shape, padding):
    """Padding equals numpy's "reflect", more than the array is large and along single pixels too."""
    array = np.arange(np.prod(shape), dtype="uint16").reshape(shape)
    around = [(0, 0)] * (len(shape) - 2) + [(0, more) for more in padding]
    np.testing.assert_array_equal(reflected(array, padding), np.pad(array, around, mode="reflect"))


def test_nothing_to_pad_copies_nothing():
    """Without padding the very array comes back."""
    array = np.zeros((1, 2, 2))
    assert reflected(array, (0, 0)) is array
