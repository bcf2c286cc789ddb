"""Rasters at reduced size, made a block at a time: of a raster on disk never more than a few blocks are in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vllm_mmout.raster.raster import Raster
from vllm_mmout.raster.window import Window
from vllm_mmout.raster.writing.layout import BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from vllm_mmout.raster.opened import OpenRaster

PREVIEW = 2048
"""Pixels that the longer side of a preview has at most."""


def preview(
    source: OpenRaster, nodata: float | None, *, classes: bool
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """A raster at reduced size, the longer side `PREVIEW` pixels.

    Args:
        source: the raster, larger than a preview.
        nodata: its nodata.
        classes: whether to take the pixel in the middle of those that become one, as numbers of classes have no
            mean, rather than the mean of the valid ones.

    Returns:
        The bands that a picture shows, [1 or 3, height, width], and bool [height, width], False where no pixel is
        valid; None where all are.

    """
    height, width = source.size
    longer = max(height, width)
    size = [max(1, round(side * PREVIEW / longer)) for side in (height, width)]
    rows, cols = _Axis.of(height, size[0], picked=classes), _Axis.of(width, size[1], picked=classes)
    shown = 3 if source.count == 3 else 1
    exact = source.dtype if classes or source.dtype == np.uint8 else np.result_type(source.dtype, np.float32)
    reduced = np.zeros((shown, *size), exact)
    seen = np.zeros(size, np.bool_)
    for across, down, raster in _pieces(source, rows, cols):
        valid = Raster(raster.array, nodata=nodata).valid()
        starts = (rows.first[down] - rows.first[down.start], cols.first[across] - cols.first[across.start])
        if classes:
            picked = np.ix_(*starts)
            reduced[:, down, across] = raster.array[:shown][:, *picked]
            seen[down, across] = True if valid is None else valid[picked]
        else:
            means, some = _means(raster.array[:shown], valid, *starts)
            reduced[:, down, across] = np.rint(means) if exact == np.uint8 else means
            seen[down, across] = some
    return reduced, None if seen.all() else seen


def valid_mask(source: OpenRaster, nodata: float | None) -> NDArray[np.bool_] | None:
    """False where a band is nodata or NaN, bool [height, width]; None if every pixel is valid."""
    rows, cols = (_Axis.of(side, side, picked=True) for side in source.size)
    valid = np.ones(source.size, np.bool_)
    for across, down, raster in _pieces(source, rows, cols):
        piece = Raster(raster.array, nodata=nodata).valid()
        if piece is not None:
            valid[down, across] = piece
    return None if valid.all() else valid


@dataclass(frozen=True, slots=True)
class _Axis:
    """Which pixels of the raster make each pixel of the preview, along one axis."""

    first: NDArray[np.intp]
    last: NDArray[np.intp]
    """Exclusive."""

    @classmethod
    def of(cls, old: int, new: int, *, picked: bool) -> _Axis:
        if picked:
            centres = (2 * np.arange(new) + 1) * old // (2 * new)
            return cls(centres, centres + 1)
        edges = np.arange(new + 1) * old // new
        return cls(edges[:-1], edges[1:])

    def groups(self) -> list[slice]:
        """Pixels of the preview that begin in one block of the raster."""
        starts = np.unique(self.first // BLOCK, return_index=True)[1].tolist()
        return [slice(start, stop) for start, stop in zip(starts, [*starts[1:], len(self.first)], strict=True)]


def _pieces(source: OpenRaster, rows: _Axis, cols: _Axis) -> Iterator[tuple[slice, slice, Raster]]:
    """The columns and the rows of the preview, and the pixels of the raster that they are made of."""
    for down in rows.groups():
        row, end = int(rows.first[down.start]), int(rows.last[down.stop - 1])
        across = cols.groups()
        spans = [(int(cols.first[group.start]), int(cols.last[group.stop - 1])) for group in across]
        windows = [Window(row, start, end - row, stop - start) for start, stop in spans]
        for group, raster in zip(across, source.windows(windows), strict=True):
            yield group, down, raster


def _means(
    bands: NDArray[Any], valid: NDArray[np.bool_] | None, rows: NDArray[np.intp], cols: NDArray[np.intp]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The means of the valid pixels of each cell, 0 where there is none, and where there is one."""
    usable = np.ones(bands.shape[1:], np.bool_) if valid is None else valid
    counts = np.add.reduceat(np.add.reduceat(usable, rows, axis=0, dtype=np.int64), cols, axis=1)
    values = np.where(usable, bands, bands.dtype.type(0)).astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):  # infinities of both signs have no mean
        sums = np.add.reduceat(np.add.reduceat(values, rows, axis=1), cols, axis=2)
        return sums / np.maximum(counts, 1), counts > 0
