"""`Canvas`, which writes a raster to a GeoTIFF while its pixels arrive, and keeps unfinished blocks in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import DecodeError, SaveError
from vllm_mmout.geo import Georeference, GeoTiffBlocks, are_classes, format_nodata
from vllm_mmout.outputs.differences import difference
from vllm_mmout.outputs.stored import StoredRaster

if TYPE_CHECKING:
    from vllm_mmout.outputs import RasterOutput

_GROUPED = 8
"""Maximum number of neighbouring GeoTIFF blocks whose pixels are collected in one array.

A larger array needs fewer copy operations per tile. Python's threads wait for each other at each copy operation."""


@dataclass(eq=False, slots=True)
class _Unfinished:
    """Block of the GeoTIFF that still lacks pixels."""

    col: int
    """First column of the block in the raster."""
    missing: int
    """Number of pixels that have not arrived."""
    group: NDArray[Any]
    """Array [bands, height, width] with the pixels of the block. Neighbouring blocks may share the array."""
    group_col: int
    """Index of the raster column where the array ``group`` begins."""


class Canvas:
    """Writer of a GeoTIFF whose pixels arrive as rectangles in any order, each pixel exactly once.

    All rectangles must match ``like``, except in their pixels, size, place and metadata.
    """

    def __init__(self, folder: Path | None, size: tuple[int, int], like: RasterOutput) -> None:
        self._size = size
        self._like = like
        self._dtype = np.dtype(np.uint8) if like.dtype == np.bool_ else like.dtype.newbyteorder("=")
        self._fill = _checked_nodata(self._dtype, like.nodata)
        self._masked = False
        self._taken = False
        self._unfinished: dict[tuple[int, int], _Unfinished] = {}
        """GeoTIFF blocks that have some of their pixels, but not all. Keys are the (row, column) of the block."""
        height, width = size
        classes = are_classes(like.dtype, like.class_names, like.palette)
        self._blocks = GeoTiffBlocks(
            folder, bands=like.count, height=height, width=width, dtype=like.dtype, classes=classes
        )

    def put(self, row: int, col: int, output: RasterOutput, valid: NDArray[np.bool_] | None = None) -> None:
        """Write a rectangle whose upper left pixel is at (row, col). Pixels where ``valid`` is False become nodata.

        ``valid`` is bool [height, width].
        """
        check_alike(self._like, output)
        self.put_pixels(row, col, output.array, None if valid is None or valid.all() else ~valid)

    def put_pixels(self, row: int, col: int, pixels: NDArray[Any], hidden: NDArray[np.bool_] | None = None) -> None:
        """Write pixels [bands, height, width] at (row, col). Pixels where the mask ``hidden`` is True become nodata.

        The pixels must have the dtype and the number of bands of ``like``.
        """
        pixels = pixels.view(np.uint8) if pixels.dtype == np.bool_ else pixels
        if pixels.dtype != self._dtype or len(pixels) != self._like.count:
            raise DecodeError(
                f"a tile has {len(pixels)} bands of {pixels.dtype}, but the first tile to arrive had {self._like.count}"
                f" of {self._dtype}; give all tiles the same number of bands and the same dtype"
            )
        self._check_nodata(pixels, hidden)
        self._put(row, col, pixels, hidden)

    def _put(self, row: int, col: int, pixels: NDArray[Any], hidden: NDArray[np.bool_] | None) -> None:
        side = self._blocks.block
        height, width = pixels.shape[1:]
        for block_row, there_rows, here_rows in _overlapped(row, height, side):
            for blocks in self._neighbours(block_row, col, width):
                first, last = max(col, blocks[0].col), min(col + width, blocks[-1].col + side)
                here = slice(here_rows.start, here_rows.stop), slice(first - col, last - col)
                target = blocks[0].group[:, there_rows, first - blocks[0].group_col : last - blocks[0].group_col]
                target[...] = pixels[:, *here]
                if hidden is not None:
                    np.copyto(target, self._fill_value(), where=hidden[here])
                for block in blocks:
                    covered = min(last, block.col + side) - max(first, block.col)
                    self._count(block_row, block, covered * target.shape[1])

    def leave_out(self, row: int, col: int, height: int, width: int) -> None:
        """Write nodata to a rectangle that lacks valid pixels."""
        self._masked = True
        nothing = np.full((self._like.count, 1, 1), self._fill_value())
        self._put(row, col, np.broadcast_to(nothing, (self._like.count, height, width)), None)

    def finish(self, georeference: Georeference | None, metadata: Mapping[str, str]) -> StoredRaster:
        """Finish the GeoTIFF and return it as a raster. Call this method after all pixels have been written."""
        described = self._like.described
        described["nodata"], described["georeference"], described["metadata"] = self._nodata, georeference, metadata
        return StoredRaster.from_blocks(self._blocks, **described)

    def discard(self) -> None:
        """Delete the unfinished file, and free its pixels in memory."""
        self._unfinished.clear()
        self._blocks.discard()

    def _neighbours(self, row: int, col: int, width: int) -> Iterator[list[_Unfinished]]:
        """Yield lists of neighbouring GeoTIFF blocks. The pixels of all blocks in a list are collected in one array.

        ``row`` is the index of the row of blocks. The blocks overlap the ``width`` raster columns that begin at
        ``col``.
        """
        shared: list[_Unfinished] = []
        for number, _, _ in _overlapped(col, width, self._blocks.block):
            block = self._unfinished.get((row, number)) or self._begin(row, number, col, width)
            if shared and shared[0].group is not block.group:
                yield shared
                shared = []
            shared.append(block)
        if shared:
            yield shared

    def _begin(self, row: int, number: int, col: int, width: int) -> _Unfinished:
        """Begin block ``number`` of a row of GeoTIFF blocks, and allocate an array for its pixels. Return the block.

        The pixels that arrive are ``width`` columns from ``col`` on. If they fill the following blocks completely,
        these blocks are begun too, and share the array. At most `_GROUPED` blocks share an array.
        """
        side, (height, full_width) = self._blocks.block, self._size
        covered_until = full_width if col + width == full_width else (col + width) // side * side
        start, end = number * side, min((number + 1) * side, full_width)
        while (
            col <= start
            and end < covered_until
            and end - start < _GROUPED * side
            and (row, end // side) not in self._unfinished
        ):
            end = min(end + side, full_width)
        rows = min(side, height - row * side)
        group = np.empty((self._like.count, rows, end - start), self._dtype)
        for first in range(start, end, side):
            missing = rows * min(side, full_width - first)
            self._unfinished[row, first // side] = _Unfinished(first, missing, group, start)
        return self._unfinished[row, number]

    def _count(self, row: int, block: _Unfinished, pixels: int) -> None:
        """Count the pixels of a block that have arrived. When all have arrived, write the block to the GeoTIFF."""
        block.missing -= pixels
        if not block.missing:
            side = self._blocks.block
            start = block.col - block.group_col
            del self._unfinished[row, block.col // side]
            self._blocks.write(row, block.col // side, block.group[:, :, start : start + side], copy=False)

    def _check_nodata(self, pixels: NDArray[Any], hidden: NDArray[np.bool_] | None) -> None:
        """Raise DecodeError if a valid pixel equals the nodata value that is written to masked pixels.

        Pixels are masked where ``hidden`` is True. Only the default nodata value is checked. The pixels of earlier
        calls count too.
        """
        if hidden is not None:
            self._masked = True
        if self._like.nodata is None and self._dtype.kind in "iu" and not self._taken:
            same = pixels == self._fill
            self._taken = bool((same if hidden is None else same & ~hidden).any())
        if self._taken and self._masked:
            self._fill_value()

    @property
    def _nodata(self) -> float | None:
        """Nodata value of the raster, normally the nodata value of the tiles.

        If the tiles have no nodata value, it is the default of the dtype if pixels are masked, and None otherwise.
        """
        if self._like.nodata is None and self._masked:
            return self._fill_value().item()  # type: ignore[no-any-return]
        return self._like.nodata

    def _fill_value(self) -> np.generic:
        """Return the nodata value to write to masked pixels. Raise DecodeError if a valid pixel has that value."""
        if self._taken:
            raise DecodeError(
                f"the result is {self._like.dtype} without a nodata value, and uses {self._fill}, which would become"
                " nodata; give the output a nodata of its own"
            )
        return self._fill


def _overlapped(start: int, length: int, side: int) -> Iterator[tuple[int, slice, slice]]:
    """Yield the blocks along one axis that overlap a range of pixels. Each block has ``side`` pixels.

    The range has ``length`` pixels, from the index ``start`` on. Each item is (index of the block, slice within the
    block, slice within the range).
    """
    for block in range(start // side, (start + length - 1) // side + 1):
        first, last = max(start, block * side), min(start + length, (block + 1) * side)
        yield block, slice(first - block * side, last - block * side), slice(first - start, last - start)


def _checked_nodata(dtype: np.dtype[Any], nodata: float | None) -> np.generic:
    """Convert ``nodata`` to ``dtype``. If ``nodata`` is None, return the default nodata value of the dtype.

    The default is NaN, or the largest integer of the dtype. Raise DecodeError if the dtype cannot hold ``nodata``.
    """
    value: np.generic
    if nodata is None:
        value = dtype.type(math.nan if dtype.kind == "f" else np.iinfo(dtype).max)
        return value
    try:
        format_nodata(nodata, dtype)
    except SaveError as error:
        raise DecodeError(
            f"the result is {dtype}, which cannot hold its nodata {nodata}; give the output a nodata of its dtype"
        ) from error
    value = dtype.type(nodata if dtype.kind == "f" else int(nodata))
    return value


def check_alike(first: RasterOutput, other: RasterOutput) -> None:
    """Raise DecodeError if two tiles of one raster are not alike, for example in their number of bands or dtype.

    Pixels, size, georeference and metadata may differ.
    """
    if (found := difference(first, other)) is not None:
        name, mine, others = found
        raise DecodeError(
            f"tiles of one raster differ in {name}: {mine} in the first that came, {others} in another; make it the"
            " same in all"
        )
