"""Pictures of rasters: colours for classes, a stretch of grey for measurements, transparency where nothing was seen.

Of a raster on disk that is shown at reduced size never more than a few blocks are in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.geo import BLOCK_SIDE, Raster, Window

if TYPE_CHECKING:
    from PIL.Image import Image

    from vllm_mmout.geo import OpenRaster

# Okabe & Ito (2008), "Color Universal Design": colours told apart with every kind of colour vision.
_OKABE_ITO = (
    (0, 0, 0),
    (230, 159, 0),
    (86, 180, 233),
    (0, 158, 115),
    (240, 228, 66),
    (0, 114, 178),
    (213, 94, 0),
    (204, 121, 167),
)
_GOLDEN = 0.6180339887498949

PREVIEW = 2048
"""Pixels that the longer side of a preview has at most."""


def render(array: NDArray[Any], valid: NDArray[np.bool_] | None, palette: NDArray[np.uint8] | None) -> Image:
    """A picture of a raster [bands, height, width], transparent where ``valid``, bool [height, width], is False.

    One band of integers with a palette, uint8 [n, 3], gets its colours, black for values that it has none for. Three
    bands are red, green and blue; of any other number the first is shown in grey. uint8 bands without a palette, where
    there are three, are shown as they are; all else is stretched from the smallest to the largest valid value, the
    same for all bands.
    """
    from PIL import Image

    if palette is not None and len(array) == 1 and array.dtype.kind in "iub":
        samples = _coloured(array[0], palette)
    else:
        shown = array if len(array) == 3 else array[:1]
        as_is = len(shown) == 3 and shown.dtype == np.uint8
        samples = np.moveaxis(shown if as_is else _stretched(shown, valid), 0, 2)
    if valid is not None:
        samples = np.concatenate([samples, np.where(valid, np.uint8(255), np.uint8(0))[..., np.newaxis]], axis=2)
    return Image.fromarray(np.ascontiguousarray(samples[..., 0] if samples.shape[2] == 1 else samples))


@cache
def default_palette(classes: int) -> NDArray[np.uint8]:
    """Colours for class ids from 0, uint8 [classes, 3]: eight of Okabe and Ito, then hues a golden angle apart.

    A longer palette begins with the shorter one, so that a class keeps its colour. Read-only, as it is shared.
    """
    base = np.array(_OKABE_ITO, np.uint8)
    step = np.arange(max(classes - len(base), 0))
    hue = step * _GOLDEN % 1.0
    value = np.array([0.95, 0.7, 0.45])[step % 3]
    saturation = np.array([0.75, 0.45])[step // 3 % 2]
    # HSV to RGB in closed form (Foley et al.): channel n has k = (n + 6 * hue) mod 6, n = 5, 3, 1 for red, green, blue.
    k = (np.array([5, 3, 1]) + 6 * hue[:, None]) % 6
    ramp = np.clip(np.minimum(k, 4 - k), 0, 1)
    further = value[:, None] * (1 - saturation[:, None] * ramp)
    palette = np.concatenate([base, np.asarray(np.rint(further * 255), np.uint8)])[:classes]
    palette.setflags(write=False)
    return palette


def class_colour(number: int) -> tuple[int, int, int]:
    """The colour of one class in the default palette, red, green, blue; from id 1024 on the colours repeat."""
    colours = _colours()
    return colours[number % len(colours)]


@cache
def _colours() -> list[tuple[int, int, int]]:
    return [(int(red), int(green), int(blue)) for red, green, blue in default_palette(1024)]


def preview(
    source: OpenRaster, nodata: float | None, *, classes: bool
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """A raster at reduced size, the longer side `PREVIEW` pixels: [1 or 3, height, width], and where it is valid.

    Of ``classes``, whose numbers have no mean, the pixel in the middle of those that become one is taken; else the
    mean of the valid ones. None instead of bool [height, width]: all are valid.
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
        starts = np.unique(self.first // BLOCK_SIDE, return_index=True)[1].tolist()
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


def _coloured(ids: NDArray[Any], palette: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """uint8 [height, width, 3]: the colour of each class."""
    table = np.concatenate([palette, np.zeros((1, 3), np.uint8)])
    known = (ids >= 0) & (ids < len(palette))
    coloured: NDArray[np.uint8] = table[np.where(known, ids, len(palette)).astype(np.intp)]
    return coloured


def _stretched(bands: NDArray[Any], valid: NDArray[np.bool_] | None) -> NDArray[np.uint8]:
    """uint8 [bands, height, width]: the smallest valid value black, the largest white."""
    values = bands.astype(np.float64)  # changed in place: previews of scenes have millions of pixels
    usable = np.isfinite(values)
    if valid is not None:
        usable &= valid
    if not usable.any():
        return np.zeros(bands.shape, np.uint8)
    np.copyto(values, values.min(where=usable, initial=np.inf), where=~usable)
    values *= 0.5  # the whole span of float64 does not fit float64
    low = values.min()
    span = values.max() - low
    if span == 0:
        return np.zeros(bands.shape, np.uint8)
    values -= low
    values /= span
    values *= 255.0
    return np.rint(values, out=values).astype(np.uint8)
