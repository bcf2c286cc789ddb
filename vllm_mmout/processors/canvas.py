"""`Canvas`, which writes a raster to a GeoTIFF while its pixels arrive, and keeps only unfinished blocks in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
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
        self._unfinished: dict[tuple[int, int], tuple[NDArray[Any], int]] = {}
        """Maps each unfinished GeoTIFF block, as (row, column), to its pixels and the number of pixels that have not
        arrived."""
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
        self._check_nodata(pixels, hidden)
        for block, there, here in self._overlapped_blocks(row, col, *pixels.shape[1:]):
            self._paint(block, there, pixels[:, *here], None if hidden is None else hidden[here])

    def leave_out(self, row: int, col: int, height: int, width: int) -> None:
        """Write nodata to a rectangle that lacks valid pixels."""
        self._masked = True
        nothing = np.full((self._like.count, 1, 1), self._fill_value())
        for block, there, here in self._overlapped_blocks(row, col, height, width):
            shape = (self._like.count, here[0].stop - here[0].start, here[1].stop - here[1].start)
            self._paint(block, there, np.broadcast_to(nothing, shape), None)

    def finish(self, georeference: Georeference | None, metadata: Mapping[str, str]) -> StoredRaster:
        """Finish the file and return it as a raster. All its pixels must have been written."""
        described = self._like.described
        described["nodata"], described["georeference"], described["metadata"] = self._nodata, georeference, metadata
        return StoredRaster.from_blocks(self._blocks, **described)

    def discard(self) -> None:
        """Delete the unfinished file, and free its pixels in memory."""
        self._unfinished.clear()
        self._blocks.discard()

    def _overlapped_blocks(
        self, row: int, col: int, height: int, width: int
    ) -> Iterator[tuple[tuple[int, int], tuple[slice, slice], tuple[slice, slice]]]:
        """Yield the blocks of the GeoTIFF that a rectangle of pixels overlaps.

        Each item is ((row, column), slices within the block, slices within the rectangle).
        """
        for block_row, there_rows, here_rows in _blocks_along(row, height, self._blocks.block):
            for block_col, there_cols, here_cols in _blocks_along(col, width, self._blocks.block):
                yield (block_row, block_col), (there_rows, there_cols), (here_rows, here_cols)

    def _paint(
        self, block: tuple[int, int], there: tuple[slice, slice], pixels: NDArray[Any], hidden: NDArray[np.bool_] | None
    ) -> None:
        side = self._blocks.block
        rows, cols = (min(side, length - side * place) for length, place in zip(self._size, block, strict=True))
        if hidden is None and pixels.shape[1:] == (rows, cols):
            self._blocks.write(*block, pixels)
            return
        waiting, missing = self._unfinished.pop(block, None) or (
            np.empty((self._like.count, rows, cols), self._dtype),
            rows * cols,
        )
        target = waiting[:, *there]
        target[...] = pixels
        if hidden is not None:
            np.copyto(target, self._fill_value(), where=hidden)
        missing -= pixels.shape[1] * pixels.shape[2]
        if missing:
            self._unfinished[block] = waiting, missing
        else:
            self._blocks.write(*block, waiting)

    def _check_nodata(self, pixels: NDArray[Any], hidden: NDArray[np.bool_] | None) -> None:
        """Raise DecodeError if a valid pixel equals the nodata value that is written where the mask ``hidden`` is True.

        Only the default nodata value is checked. The pixels of earlier calls count too.
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
        """Nodata value of the raster: the tiles' value, else a default if pixels are masked, else None."""
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


def _blocks_along(start: int, length: int, side: int) -> Iterator[tuple[int, slice, slice]]:
    """Yield the blocks along one axis that overlap a range of pixels. Each block has ``side`` pixels.

    The range has ``length`` pixels, from the index ``start`` on. Each item is (index of the block, slice within the
    block, slice within the range).
    """
    for block in range(start // side, (start + length - 1) // side + 1):
        first, last = max(start, block * side), min(start + length, (block + 1) * side)
        yield block, slice(first - block * side, last - block * side), slice(first - start, last - start)


def _checked_nodata(dtype: np.dtype[Any], nodata: float | None) -> np.generic:
    """Convert ``nodata`` to a dtype, or return a default for None. Raise DecodeError if the dtype cannot hold it."""
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
    """Raise DecodeError if two rasters differ in bands, dtype, nodata or another property that tiles share."""
    if (found := difference(first, other)) is not None:
        name, mine, others = found
        raise DecodeError(
            f"tiles of one raster differ in {name}: {mine} in the first that came, {others} in another; make it the"
            " same in all"
        )
