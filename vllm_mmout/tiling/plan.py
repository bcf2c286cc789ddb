"""Plan: how the tiles of one raster make it up, in pixels of the result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from vllm_mmout.errors import DecodeError
from vllm_mmout.tiling.axis import Axis

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vllm_mmout.outputs import RasterOutput
    from vllm_mmout.tiling.grid import TileGrid
    from vllm_mmout.tiling.weights import Blend

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
    def make(cls, grid: TileGrid, index: int, output: RasterOutput, blend: Blend) -> Plan:
        """Plan a raster.

        Args:
            grid: where tiles lie in the scene.
            index: number of a tile.
            output: what was made of that tile, padding included.
            blend: how values are averaged; integers never are.

        Raises:
            DecodeError: a tile, or the scene, does not begin and end at a whole pixel of the result.

        """
        window, padding = grid.window(index), grid.padding(index)
        fed = (window.height + padding[0], window.width + padding[1])
        got = (output.height, output.width)
        scales = [Fraction(new, old) for new, old in zip(got, fed, strict=True)]
        shape = blend if output.array.dtype.kind == "f" else "none"
        axes, sizes = [], []
        along = zip((grid.rows, grid.cols), grid.sides, (grid.height, grid.width), scales, strict=True)
        for starts, side, size, scale in along:
            pixels = [place * scale for place in (*starts, min(side, size), size)]
            if any(pixel.denominator > 1 for pixel in pixels):
                raise DecodeError(
                    f"the model makes {got[0]} x {got[1]} pixels of a tile of {fed[0]} x {fed[1]}, and not all tiles"
                    f" begin and end at a whole pixel of such a result; let tile, overlap, and the height and width of"
                    f" the scene or of its window, be multiples of {scale.denominator}"
                )
            *firsts, tile, length = (int(pixel) for pixel in pixels)
            axes.append(Axis.cut(firsts, tile, length, shape))
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
        return np.multiply.outer(self.rows.weight(row, cell[0]), self.cols.weight(col, cell[1]))

    def visible(self, index: int) -> tuple[int, int]:
        """(height, width) of what of a tile's output lies in the result."""
        row, col = divmod(index, len(self.grid.cols))
        return len(self.rows.weights[row]), len(self.cols.weights[col])
