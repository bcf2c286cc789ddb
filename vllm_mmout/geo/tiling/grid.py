"""TileGrid: where the tiles of a scene lie; Plan: how they make up the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import DecodeError, InputError, OptionError
from vllm_mmout.geo.raster.raster import Window
from vllm_mmout.geo.tiling.blending import Blend, axis_weights


@dataclass(frozen=True)
class TileGrid:
    """Tiles that cover a scene, numbered row by row from the upper left.

    Raises:
        InputError: the scene has no pixels.
        OptionError: the tile has none, or tiles share more than half a tile.

    """

    height: int
    """Rows of the scene."""
    width: int
    """Columns of the scene."""
    tile: int
    """Side of a tile in pixels; its height, where it has a ``tile_width``."""
    overlap: int = 0
    """Pixels that neighbours share at least, at most half a tile."""
    edge: Literal["shift", "pad"] = "shift"
    """What becomes of tiles that would reach beyond the scene: moved inward, or filled up by reflection."""
    tile_width: int | None = None
    """Width of a tile in pixels; None: tiles are square."""

    def __post_init__(self) -> None:
        if min(self.height, self.width) < 1:
            raise InputError(f"a scene must have pixels, got {self.height} rows and {self.width} columns")
        if min(self.sides) < 1:
            raise OptionError(f"tile must be 1 or more pixels, got {self.said}", param="tile")
        if self.overlap < 0 or 2 * self.overlap > min(self.sides):
            raise OptionError(
                f"overlap must be 0 or more and at most half a tile, got {self.overlap} for tiles of {self.said};"
                " choose a smaller overlap or a larger tile",
                param="overlap",
            )
        if self.edge not in ("shift", "pad"):
            raise OptionError(f'edge must be "shift" or "pad", got {self.edge!r}')

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of a tile."""
        return self.tile, self.tile if self.tile_width is None else self.tile_width

    @property
    def said(self) -> str:
        """A tile's size in words: "512", or "256 x 512" for one that is not square."""
        height, width = self.sides
        return f"{height}" if height == width else f"{height} x {width}"

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """First row of each row of tiles."""
        return self._starts(self.height, self.sides[0])

    @cached_property
    def cols(self) -> tuple[int, ...]:
        """First column of each column of tiles."""
        return self._starts(self.width, self.sides[1])

    def __len__(self) -> int:
        return len(self.rows) * len(self.cols)

    def window(self, index: int) -> Window:
        """Where a tile lies, without what hangs over the scene's edge."""
        row, col = self._start(index)
        height, width = self.sides
        return Window(row, col, min(height, self.height - row), min(width, self.width - col))

    def padding(self, index: int) -> tuple[int, int]:
        """How many rows below and columns to the right `reflected` adds to a tile; none where tiles are shifted."""
        window = self.window(index)
        height, width = self.sides
        return (0, 0) if self.edge == "shift" else (height - window.height, width - window.width)

    def groups(self, columns: int) -> Iterator[list[int]]:
        """The tiles in an order of reading: group by group of neighbouring columns, row by row within a group.

        Args:
            columns: how many columns of tiles a group has; the last one has what is left.

        """
        across = len(self.cols)
        for first in range(0, across, columns):
            group = range(first, min(first + columns, across))
            yield [row * across + col for row in range(len(self.rows)) for col in group]

    def _starts(self, size: int, tile: int) -> tuple[int, ...]:
        if size <= tile:
            return (0,)
        stride = tile - self.overlap
        starts = range(0, size - self.overlap, stride)  # no tile of which its neighbour has all
        return (*starts[:-1], size - tile) if self.edge == "shift" else tuple(starts)

    def _start(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"tile {index} of {len(self)}")
        row, col = divmod(index, len(self.cols))
        return self.rows[row], self.cols[col]


def reflected(array: NDArray[Any], padding: tuple[int, int]) -> NDArray[Any]:
    """Add rows below and columns to the right that mirror those before them, the edge itself not doubled.

    Args:
        array: [..., height, width].
        padding: rows and columns to add, any number: where they are more than there are to mirror, the mirror image is
            mirrored again. A single row or column is repeated.

    Returns:
        A new array, or the same without padding.

    """
    for axis, more in zip((-2, -1), padding, strict=True):
        if more:
            length = array.shape[axis]
            period = max(2 * (length - 1), 1)
            place = np.arange(length + more) % period
            array = array.take(np.minimum(place, period - place) if length > 1 else place, axis=axis)
    return array


@dataclass(frozen=True, slots=True)
class Axis:
    """Intervals along one axis, in each of which the same tiles count."""

    starts: tuple[int, ...]
    """First pixel of each tile."""
    intervals: tuple[slice, ...]
    """From the first pixel to the last."""
    spans: tuple[range, ...]
    """The intervals, by number, in which each tile counts."""
    covers: tuple[int, ...]
    """How many tiles count in each interval."""
    weights: tuple[NDArray[np.float64], ...]
    """Of each tile, over all its pixels."""

    @classmethod
    def cut(cls, starts: Sequence[int], tile: int, size: int, blend: Blend) -> Axis:
        """Cut an axis; the arguments are those of `axis_weights`."""
        weights = axis_weights(starts, tile, size, blend)
        runs = []
        for start, weight in zip(starts, weights, strict=True):
            counting = np.flatnonzero(weight)
            runs.append((start + int(counting[0]), start + int(counting[-1]) + 1))
        cuts = sorted({cut for run in runs for cut in run})
        number = {cut: place for place, cut in enumerate(cuts)}
        spans = tuple(range(number[first], number[last]) for first, last in runs)
        covers = [0] * (len(cuts) - 1)
        for span in spans:
            for interval in span:
                covers[interval] += 1
        return cls(tuple(starts), tuple(slice(*cut) for cut in pairwise(cuts)), spans, tuple(covers), tuple(weights))

    def within(self, tile: int, interval: int) -> slice:
        """Where an interval lies in a tile."""
        pixels, start = self.intervals[interval], self.starts[tile]
        return slice(pixels.start - start, pixels.stop - start)


Cell: TypeAlias = tuple[int, int]
"""A rectangle in which the same tiles count: its number among the rows and among the columns."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Where tiles lie in the result, which may have more or fewer pixels than the scene."""

    grid: TileGrid
    output_size: tuple[int, int]
    """(height, width) of every tile's output."""
    size: tuple[int, int]
    """(height, width) of the result."""
    rows: Axis
    cols: Axis

    @classmethod
    def make(cls, grid: TileGrid, index: int, got: tuple[int, int], blend: Blend) -> Plan:
        """Plan a raster by the (height, width) that was made of one tile, padding included."""
        window, padding = grid.window(index), grid.padding(index)
        fed = (window.height + padding[0], window.width + padding[1])
        axes, sizes = [], []
        along = zip((grid.rows, grid.cols), grid.sides, (grid.height, grid.width), got, fed, strict=True)
        for starts, side, size, new, old in along:
            pixels = [place * Fraction(new, old) for place in (*starts, min(side, size), size)]
            if any(pixel.denominator > 1 for pixel in pixels):
                raise DecodeError(
                    f"the model makes {got[0]} x {got[1]} pixels of a tile of {fed[0]} x {fed[1]}, and not all tiles"
                    f" begin and end at a whole pixel of such a result; let tile, overlap, and the height and width of"
                    f" the scene or of its window, be multiples of {Fraction(new, old).denominator}"
                )
            *firsts, tile, length = (int(pixel) for pixel in pixels)
            axes.append(Axis.cut(firsts, tile, length, blend))
            sizes.append(length)
        return cls(grid, got, (sizes[0], sizes[1]), axes[0], axes[1])

    def cells(self, index: int) -> Iterator[Cell]:
        """The rectangles in which a tile counts."""
        row, col = divmod(index, len(self.grid.cols))
        return ((down, across) for down in self.rows.spans[row] for across in self.cols.spans[col])

    def covers(self, cell: Cell) -> int:
        """How many tiles count there."""
        return self.rows.covers[cell[0]] * self.cols.covers[cell[1]]

    def place(self, cell: Cell) -> tuple[int, int, int, int]:
        """First row and column, height and width of a rectangle in the result."""
        rows, cols = self.rows.intervals[cell[0]], self.cols.intervals[cell[1]]
        return rows.start, cols.start, rows.stop - rows.start, cols.stop - cols.start

    def within(self, index: int, cell: Cell) -> tuple[slice, slice]:
        """Where a rectangle lies in a tile's output."""
        row, col = divmod(index, len(self.grid.cols))
        return self.rows.within(row, cell[0]), self.cols.within(col, cell[1])

    def weight(self, index: int, cell: Cell) -> NDArray[np.float64]:
        """What a tile counts at each pixel of a rectangle."""
        row, col = divmod(index, len(self.grid.cols))
        rows, cols = self.within(index, cell)
        return np.multiply.outer(self.rows.weights[row][rows], self.cols.weights[col][cols])

    def visible(self, index: int) -> tuple[int, int]:
        """(height, width) of what of a tile's output lies in the result."""
        row, col = divmod(index, len(self.grid.cols))
        return len(self.rows.weights[row]), len(self.cols.weights[col])
