"""Compute the positions of the tiles of a scene, and where the model's output for each tile belongs in the result."""

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
    """Grid of the tiles that cover a scene, numbered row by row from the upper left.

    Raises:
        InputError: the scene has no pixels.
        OptionError: a tile has no pixels, the overlap is negative or more than half a tile, or a tile or the overlap is
            not a multiple of ``patch``.

    """

    height: int
    """Height of the scene in pixels."""
    width: int
    """Width of the scene in pixels."""
    tile: int
    """Height of a tile in pixels. The width is the same if ``tile_width`` is None."""
    overlap: int = 0
    """Minimum number of pixels that neighbouring tiles share, at most half a tile."""
    edge: Literal["shift", "pad"] = "shift"
    """Handling of tiles that would reach beyond the scene: "shift" moves them inward, "pad" fills by reflection."""
    tile_width: int | None = None
    """Width of a tile in pixels. If None, tiles are square."""
    patch: int = 1
    """Side of a square patch in pixels, 1 for a model without patches. The model makes one output pixel for each patch.

    Tiles begin at multiples of the side. Patches at the lower or right edge may reach beyond the scene."""

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
        for name, length in (("tile", self.sides[0]), ("tile", self.sides[1]), ("overlap", self.overlap)):
            if length % self.patch:
                below = length - length % self.patch
                sizes = " or ".join(str(size) for size in (below, below + self.patch) if size or name == "overlap")
                raise OptionError(
                    f"{name} is {length}, which is not a multiple of the patches of {self.patch} pixels that the result"
                    f" has a pixel for; the nearest sizes are {sizes}",
                    param=name,
                )

    @property
    def covered(self) -> tuple[int, int]:
        """Height and width of the scene in pixels, rounded up to multiples of ``patch``."""
        return -(-self.height // self.patch) * self.patch, -(-self.width // self.patch) * self.patch

    @property
    def fed(self) -> tuple[int, int]:
        """Height and width in pixels of the model's input for a tile, padding included."""
        if self.edge == "pad":
            return self.sides
        return min(self.sides[0], self.covered[0]), min(self.sides[1], self.covered[1])

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of a tile in pixels."""
        return self.tile, self.tile if self.tile_width is None else self.tile_width

    @property
    def said(self) -> str:
        """Tile size as text for error messages: "512", or "256 x 512" if tiles are not square."""
        height, width = self.sides
        return f"{height}" if height == width else f"{height} x {width}"

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """Pixel row of the scene where each row of tiles begins."""
        return self._starts(self.height, self.sides[0], self.covered[0])

    @cached_property
    def cols(self) -> tuple[int, ...]:
        """Pixel column of the scene where each column of tiles begins."""
        return self._starts(self.width, self.sides[1], self.covered[1])

    def __len__(self) -> int:
        return len(self.rows) * len(self.cols)

    def window(self, index: int) -> Window:
        """Return the window of tile ``index`` in the scene, clipped at the scene's edge."""
        row, col = self._start(index)
        height, width = self.sides
        return Window(row, col, min(height, self.height - row), min(width, self.width - col))

    def padding(self, index: int) -> tuple[int, int]:
        """Return the (rows, columns) of padding that a tile needs below and to the right, beyond the scene's edge."""
        window, (height, width) = self.window(index), self.fed
        return height - window.height, width - window.width

    def groups(self, columns: int) -> Iterator[list[int]]:
        """Yield the tiles in groups of ``columns`` adjacent columns of tiles. A group lists tile indices row by row.

        Args:
            columns: number of columns of tiles in a group. The last group may have fewer.

        """
        across = len(self.cols)
        for first in range(0, across, columns):
            group = range(first, min(first + columns, across))
            yield [row * across + col for row in range(len(self.rows)) for col in group]

    def _starts(self, size: int, tile: int, covered: int) -> tuple[int, ...]:
        if size <= tile:
            return (0,)
        stride = tile - self.overlap
        starts = range(0, size - self.overlap, stride)  # without a last tile that lies entirely within its neighbour
        return (*starts[:-1], covered - tile) if self.edge == "shift" else tuple(starts)

    def _start(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"tile {index} of {len(self)}")
        row, col = divmod(index, len(self.cols))
        return self.rows[row], self.cols[col]


def reflected(array: NDArray[Any], padding: tuple[int, int]) -> NDArray[Any]:
    """Pad an array below and to the right by reflection, without repeating the row or column at the edge.

    Args:
        array: array [..., height, width].
        padding: number of rows and columns to add. If it exceeds the array's own size, the reflection is reflected
            again. A single row or column is repeated.

    Returns:
        A new array, or ``array`` itself if ``padding`` is (0, 0).

    """
    for axis, more in zip((-2, -1), padding, strict=True):
        if more:
            length = array.shape[axis]
            period = max(2 * (length - 1), 1)
            index = np.arange(length + more) % period
            array = array.take(np.minimum(index, period - index) if length > 1 else index, axis=axis)
    return array


@dataclass(frozen=True, slots=True)
class Axis:
    """Row or column axis of the result, divided into intervals. The same tiles cover all pixels of an interval."""

    starts: tuple[int, ...]
    """First pixel of each tile on this axis."""
    intervals: tuple[slice, ...]
    """Consecutive intervals of rows (or columns) that divide the result along this axis. All pixels of an interval are
    covered by the same tiles."""
    spans: tuple[range, ...]
    """Indices of the intervals where a tile has a positive blending weight, as a range for each tile."""
    covers: tuple[int, ...]
    """Number of tiles that have a positive blending weight in each interval of the axis."""
    weights: tuple[NDArray[np.float64], ...]
    """Blending weights along this axis: for each tile, an array with one weight per row (or column) of the tile."""

    @classmethod
    def cut(cls, starts: Sequence[int], tile: int, size: int, blend: Blend) -> Axis:
        """Divide an axis of ``size`` pixels into intervals. All pixels of an interval are covered by the same tiles.

        ``starts`` has the first pixel of each tile. All tiles are ``tile`` pixels long.
        """
        weights = axis_weights(starts, tile, size, blend)
        runs = []
        for start, weight in zip(starts, weights, strict=True):
            nonzero = np.flatnonzero(weight)
            runs.append((start + int(nonzero[0]), start + int(nonzero[-1]) + 1))
        cuts = sorted({cut for run in runs for cut in run})
        index = {cut: number for number, cut in enumerate(cuts)}
        spans = tuple(range(index[first], index[last]) for first, last in runs)
        covers = [0] * (len(cuts) - 1)
        for span in spans:
            for interval in span:
                covers[interval] += 1
        return cls(tuple(starts), tuple(slice(*cut) for cut in pairwise(cuts)), spans, tuple(covers), tuple(weights))

    def within(self, tile: int, interval: int) -> slice:
        """Return the slice of a tile that is within an interval. The slice counts from the first pixel of the tile.

        ``tile`` and ``interval`` are indices.
        """
        pixels, start = self.intervals[interval], self.starts[tile]
        return slice(pixels.start - start, pixels.stop - start)


Cell: TypeAlias = tuple[int, int]
"""Rectangle of the result where the same tiles overlap. The two numbers are the indices of its row interval and its
column interval in `Axis.intervals`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Layout of the result raster: where the model's output for each tile belongs.

    The result may have more or fewer pixels than the scene.
    """

    grid: TileGrid
    output_size: tuple[int, int]
    """(height, width) in pixels of the model's output for one tile."""
    size: tuple[int, int]
    """(height, width) of the result in pixels."""
    rows: Axis
    cols: Axis

    @classmethod
    def make(cls, grid: TileGrid, got: tuple[int, int], blend: Blend) -> Plan:
        """Make the plan: compute where the output of each tile belongs in the result.

        ``got`` is the (height, width) of a tile's output, padding included. Raise DecodeError if a tile would not begin
        and end at whole pixels of the result, or if the output does not have one pixel for each patch of the grid.
        """
        fed = grid.fed
        if grid.patch > 1 and (got[0] * grid.patch, got[1] * grid.patch) != fed:
            raise DecodeError(
                f"the model makes {got[0]} x {got[1]} pixels of a tile of {fed[0]} x {fed[1]}, which are not the"
                f" patches of {grid.patch} x {grid.patch} pixels that its output processor states; correct patch_size"
            )
        axes, sizes = [], []
        along = zip((grid.rows, grid.cols), grid.sides, grid.covered, got, fed, strict=True)
        for starts, side, size, new, old in along:
            pixels = [position * Fraction(new, old) for position in (*starts, min(side, size), size)]
            if any(pixel.denominator > 1 for pixel in pixels):
                raise DecodeError(
                    f"the model makes {got[0]} x {got[1]} pixels of a tile of {fed[0]} x {fed[1]}, and not all tiles"
                    f" begin and end at a whole pixel of such a result; make tile, overlap, and the height and width of"
                    f" the scene or of its window multiples of {Fraction(new, old).denominator}"
                )
            *firsts, tile, length = (int(pixel) for pixel in pixels)
            axes.append(Axis.cut(firsts, tile, length, blend))
            sizes.append(length)
        return cls(grid, got, (sizes[0], sizes[1]), axes[0], axes[1])

    def cells(self, index: int) -> Iterator[Cell]:
        """Return the rectangles of the result where tile ``index`` has a positive blending weight."""
        row, col = divmod(index, len(self.grid.cols))
        return ((down, across) for down in self.rows.spans[row] for across in self.cols.spans[col])

    def only_cell(self, index: int) -> Cell | None:
        """Return the rectangle of the result that tile ``index`` covers, or None if another tile overlaps it."""
        row, col = divmod(index, len(self.grid.cols))
        down, across = self.rows.spans[row], self.cols.spans[col]
        cell = (down.start, across.start)
        return cell if len(down) == len(across) == 1 and self.covers(cell) == 1 else None

    def covers(self, cell: Cell) -> int:
        """Return how many tiles cover the rectangle ``cell`` of the result with a positive blending weight."""
        return self.rows.covers[cell[0]] * self.cols.covers[cell[1]]

    def place(self, cell: Cell) -> tuple[int, int, int, int]:
        """Return (first row, first column, height, width) of the rectangle ``cell``, in pixels of the result."""
        rows, cols = self.rows.intervals[cell[0]], self.cols.intervals[cell[1]]
        return rows.start, cols.start, rows.stop - rows.start, cols.stop - cols.start

    def within(self, index: int, cell: Cell) -> tuple[slice, slice]:
        """Return the (rows, columns) slices of the output of tile ``index`` that cover the rectangle ``cell``."""
        row, col = divmod(index, len(self.grid.cols))
        return self.rows.within(row, cell[0]), self.cols.within(col, cell[1])

    def weight(self, index: int, cell: Cell) -> NDArray[np.float64]:
        """Return the blending weight [height, width] of tile ``index`` at each pixel of the rectangle ``cell``."""
        row, col = divmod(index, len(self.grid.cols))
        rows, cols = self.within(index, cell)
        return np.multiply.outer(self.rows.weights[row][rows], self.cols.weights[col][cols])

    def visible(self, index: int) -> tuple[int, int]:
        """Return the (height, width) of the visible part of a tile's output. Padding beyond the result is invisible."""
        row, col = divmod(index, len(self.grid.cols))
        return len(self.rows.weights[row]), len(self.cols.weights[col])
