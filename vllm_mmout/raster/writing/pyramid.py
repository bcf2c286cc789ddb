"""Pyramid: the blocks of a raster and of its overviews, each encoded when its pixels are there."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from vllm_mmout.raster.writing.layout import BLOCK
from vllm_mmout.raster.writing.recent import Recent
from vllm_mmout.raster.writing.reduction import Axis, Meaning, Reduction
from vllm_mmout.raster.writing.statistics import Statistics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from vllm_mmout.raster.writing.layout import Layout
    from vllm_mmout.raster.writing.spool import Spool

RECENT_BYTES = 32 << 20
"""Bytes of pixels that are kept for overviews to come; what went is decoded from the spool."""
_ROWS_AT_ONCE = 64
"""Rows of an overview that are computed at once: the doubles between fit a processor's cache."""


class Pyramid:
    """Takes the blocks of a raster in any order, and makes those of its overviews as soon as that can be done.

    In memory are the pixels at work, some that came last, and tables: 12 bytes a block and band for where it lies and
    40 for its statistics.

    Args:
        layout: of the raster.
        spool: where encoded blocks are kept.

    """

    def __init__(self, layout: Layout, spool: Spool) -> None:
        self.levels = [_Level.of(level) for level in layout.levels()]
        """The raster, and its overviews from large to small."""
        self._spool = spool
        self._recent = Recent(RECENT_BYTES)
        self._meaning = Meaning()
        self._begin(overviews=True)

    def has(self, row: int, col: int) -> bool:
        """Whether a block of the raster came."""
        return bool(self.levels[0].sizes[0, row, col])

    def write(self, row: int, col: int, pixels: NDArray[Any]) -> None:
        """Take a block of the raster, [bands, height, width].

        Raises:
            OSError: it cannot be spooled; the pyramid cannot be used any more.

        """
        for band, plane in enumerate(pixels):
            stored = plane.astype(self.levels[0].layout.dtype, copy=False)
            self._statistics.add(band, row, col, stored, self._meaning.nodata)
            self._keep(0, band, row, col, stored)
        self._came(0, row, col)

    def expect(self, meaning: Meaning) -> None:
        """Say what the numbers mean. What was made on another assumption is made anew.

        Raises:
            OSError: blocks cannot be read or spooled; the pyramid cannot be used any more.

        """
        if meaning.same_as(self._meaning):
            return
        overviews = not (self._meaning.classes and meaning.classes)  # that "nearest" takes no notice of nodata
        self._meaning = meaning
        self._begin(overviews=overviews)
        for row, col in np.argwhere(self.levels[0].sizes[0]).tolist():
            for band in range(self.levels[0].layout.bands):
                plane = self._plane(0, band, row, col)
                self._statistics.add(band, row, col, plane, meaning.nodata)
                if overviews:
                    self._recent.add((0, band, row, col), plane)
            if overviews:
                self._came(0, row, col)

    def statistics(self) -> list[dict[str, str]]:
        """What GDAL_METADATA says of each band."""
        return self._statistics.items()

    def copy(self, target: BinaryIO) -> None:
        """Copy all blocks to a file: those of the smallest overview first, in each band by band and row by row.

        Raises:
            OSError: the disk is full, or blocks cannot be read.

        """
        for level in reversed(self.levels):
            self._spool.copy(target, level.offsets.reshape(-1), level.sizes.reshape(-1).astype(np.int64))

    def _begin(self, *, overviews: bool) -> None:
        """Forget the statistics, and the overviews."""
        self._statistics = Statistics(self.levels[0].layout.bands, self.levels[0].layout.grid)
        if overviews:
            self._recent.clear()
            self._steps = [
                _Step.of(larger.layout, smaller.layout, self._meaning)
                for larger, smaller in zip(self.levels, self.levels[1:], strict=False)
            ]

    def _came(self, number: int, row: int, col: int) -> None:
        """Make what a block was the last of, and what that was the last of."""
        if number == len(self._steps):
            return
        step = self._steps[number]
        for above in step.parents(row, col):
            step.missing[above] -= 1
            if not step.missing[above]:
                self._make(number + 1, *above)
                for below in step.children(*above):
                    if not any(step.missing[parent] for parent in step.parents(*below)):
                        for band in range(self.levels[0].layout.bands):
                            self._recent.drop((number, band, *below))
                self._came(number + 1, *above)

    def _make(self, number: int, row: int, col: int) -> None:
        """Make a block of an overview."""
        step, layout = self._steps[number - 1], self.levels[number].layout
        height, width = layout.inside(row, col)
        top, left = row * BLOCK, col * BLOCK
        across = (left, left + width)
        for band in range(layout.bands):
            first, pixels = self._below(number, band, row, col)
            plane = np.empty((height, width), layout.dtype)
            for start in range(0, height, _ROWS_AT_ONCE):
                stop = min(height, start + _ROWS_AT_ONCE)
                down = (top + start, top + stop)
                begin, end = step.reduction.rows.covered(*down)
                plane[start:stop] = step.reduction(pixels[begin - first : end - first], down, across)
            self._keep(number, band, row, col, plane)

    def _below(self, number: int, band: int, row: int, col: int) -> tuple[int, NDArray[Any]]:
        """The pixels that a block of an overview covers in the level above it in size, and their first row."""
        step, layout = self._steps[number - 1], self.levels[number - 1].layout
        top, bottom = step.down.covered[row]
        left, right = step.across.covered[col]
        pixels = np.empty((bottom - top, right - left), layout.dtype)
        for block_row, block_col in step.children(row, col):
            plane = self._plane(number - 1, band, block_row, block_col)
            rows, here_rows = _shared(block_row, plane.shape[0], top, bottom)
            cols, here_cols = _shared(block_col, plane.shape[1], left, right)
            pixels[here_rows, here_cols] = plane[rows, cols]
        return top, pixels

    def _plane(self, number: int, band: int, row: int, col: int) -> NDArray[Any]:
        """The pixels of a block of a band that was written."""
        plane = self._recent.get((number, band, row, col))
        if plane is not None:
            return plane
        level = self.levels[number]
        data = self._spool.read(int(level.offsets[band, row, col]), int(level.sizes[band, row, col]))
        return level.layout.decode(data, row, col)

    def _keep(self, number: int, band: int, row: int, col: int, plane: NDArray[Any]) -> None:
        """Encode and spool a block of a band."""
        level = self.levels[number]
        data = level.layout.encode(plane)
        level.offsets[band, row, col] = self._spool.append(data)
        level.sizes[band, row, col] = len(data)
        if number < len(self._steps):
            self._recent.add((number, band, row, col), plane)


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """The raster or an overview, and where its blocks lie in the spool."""

    layout: Layout
    offsets: NDArray[np.int64]
    """[bands, rows, columns]."""
    sizes: NDArray[np.int32]
    """[bands, rows, columns]; 0 for a block that did not come."""

    @classmethod
    def of(cls, layout: Layout) -> _Level:
        shape = (layout.bands, *layout.grid)
        return cls(layout, np.zeros(shape, np.int64), np.zeros(shape, np.int32))


@dataclass(frozen=True, slots=True)
class _Side:
    """Along one axis, what blocks of a larger level make which of a smaller one."""

    covered: list[tuple[int, int]]
    """For each block of the smaller level the first pixel of the larger one that it covers, and the one behind."""

    @classmethod
    def of(cls, axis: Axis) -> _Side:
        return cls([axis.covered(start, min(axis.new, start + BLOCK)) for start in range(0, axis.new, BLOCK)])

    def children(self, block: int) -> range:
        """The blocks of the larger level that a block of the smaller one covers."""
        first, end = self.covered[block]
        return range(first // BLOCK, (end - 1) // BLOCK + 1)

    def parents(self, block: int) -> list[int]:
        """The blocks of the smaller level that cover a block of the larger one, or some of it."""
        near = range(max(0, block // 2 - 1), min(len(self.covered), block // 2 + 2))
        return [parent for parent in near if block in self.children(parent)]


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """From one level to the next smaller one."""

    reduction: Reduction
    down: _Side
    across: _Side
    missing: NDArray[np.int8]
    """For each block of the smaller level, how many of the larger one it waits for."""

    @classmethod
    def of(cls, larger: Layout, smaller: Layout, meaning: Meaning) -> _Step:
        rows, cols = Axis(larger.height, smaller.height), Axis(larger.width, smaller.width)
        down, across = _Side.of(rows), _Side.of(cols)
        counts = [[len(side.children(block)) for block in range(len(side.covered))] for side in (down, across)]
        return cls(Reduction(rows, cols, meaning), down, across, np.multiply.outer(*counts).astype(np.int8))

    def children(self, row: int, col: int) -> Iterator[tuple[int, int]]:
        """The blocks of the larger level that a block of the smaller one waits for."""
        return product(self.down.children(row), self.across.children(col))

    def parents(self, row: int, col: int) -> Iterator[tuple[int, int]]:
        """The blocks of the smaller level that wait for a block of the larger one."""
        return product(self.down.parents(row), self.across.parents(col))


def _shared(block: int, length: int, first: int, end: int) -> tuple[slice, slice]:
    """What a block and a stretch of pixels share: where in the block, where in the stretch."""
    start, stop = max(first, block * BLOCK), min(end, block * BLOCK + length)
    return slice(start - block * BLOCK, stop - block * BLOCK), slice(start - first, stop - first)
