"""Draw rasters as pictures: classes in colours, measurements in grey, and nodata transparent.

A raster on disk is reduced without having more than a few of its blocks in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.geo import Raster, Window, block_limit

if TYPE_CHECKING:
    from PIL.Image import Image

# Okabe & Ito (2008), "Color Universal Design": colours that people with any kind of colour vision can distinguish.
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
"""Maximum length in pixels of the longer side of a preview."""


class PreviewSource(Protocol):
    """Interface of an open raster from which a preview can be read."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""

    @property
    def count(self) -> int:
        """Number of bands."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the pixels."""

    def windows(self, windows: Sequence[Window]) -> Iterator[Raster]:
        """Yield the pixels in each of ``windows`` of the raster, in the same order."""


def render(
    array: NDArray[Any],
    valid: NDArray[np.bool_] | None,
    palette: NDArray[np.uint8] | None,
    limits: tuple[float, float] | None = None,
) -> Image:
    """Return a picture of raster pixels [bands, height, width]. Pixels where ``valid`` is False are transparent.

    ``valid`` is bool [height, width].

    A single band of integers is coloured by ``palette``, uint8 [n, 3], and values beyond the palette are black. Three
    bands are shown as red, green and blue. For any other number of bands the first is shown in grey. Three uint8 bands
    are shown unchanged. Otherwise values are stretched between ``limits``, which are by default the smallest and the
    largest valid value of all shown bands.
    """
    from PIL import Image

    if palette is not None and len(array) == 1 and array.dtype.kind in "iub":
        samples = _coloured(array[0], palette)
    else:
        bands = array if len(array) == 3 else array[:1]
        unchanged = len(bands) == 3 and bands.dtype == np.uint8
        samples = np.moveaxis(bands if unchanged else _stretched(bands, valid, limits), 0, 2)
    if valid is not None:
        samples = np.concatenate([samples, np.where(valid, np.uint8(255), np.uint8(0))[..., np.newaxis]], axis=2)
    return Image.fromarray(np.ascontiguousarray(samples[..., 0] if samples.shape[2] == 1 else samples))


@cache
def default_palette(classes: int) -> NDArray[np.uint8]:
    """Return a distinct colour for each of ``classes`` classes, uint8 [classes, 3].

    The first eight are by Okabe and Ito, and the hues of the others are a golden angle apart. A longer palette begins
    with the colours of a shorter palette, so a class keeps its colour. The array is cached and read-only.
    """
    base = np.array(_OKABE_ITO, np.uint8)
    step = np.arange(max(classes - len(base), 0))
    hue = step * _GOLDEN % 1.0
    value = np.array([0.95, 0.7, 0.45])[step % 3]
    saturation = np.array([0.75, 0.45])[step // 3 % 2]
    # HSV to RGB in closed form (Foley et al.): channel n has k = (n + 6 * hue) mod 6, n = 5, 3, 1 for red, green, blue.
    k = (np.array([5, 3, 1]) + 6 * hue[:, None]) % 6
    ramp = np.clip(np.minimum(k, 4 - k), 0, 1)
    generated = value[:, None] * (1 - saturation[:, None] * ramp)
    palette = np.concatenate([base, np.asarray(np.rint(generated * 255), np.uint8)])[:classes]
    palette.setflags(write=False)
    return palette


def class_colour(number: int) -> tuple[int, int, int]:
    """Return the default colour of class ``number`` as (red, green, blue).

    The colours repeat after 1024 classes: class 1024 has the colour of class 0.
    """
    colours = _colours()
    return colours[number % len(colours)]


def colour_of_class(palette: NDArray[np.uint8] | None, number: int) -> tuple[int, int, int]:
    """Return the (red, green, blue) colour of class ``number`` in ``palette``.

    Return the class's default colour if ``palette`` is None or lacks the class.
    """
    if palette is None or number >= len(palette):
        return class_colour(number)
    red, green, blue = palette[number].tolist()
    return red, green, blue


@cache
def _colours() -> list[tuple[int, int, int]]:
    return [(int(red), int(green), int(blue)) for red, green, blue in default_palette(1024)]


def preview(
    source: PreviewSource, nodata: float | None, *, classes: bool
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Read a raster reduced so that its longer side has `PREVIEW` pixels.

    If the raster holds class ids (``classes``), a pixel of the result is the middle one of the pixels that it covers.
    Otherwise, it is the mean of the valid pixels that it covers.

    Returns:
        Bands [1 or 3, height, width], and the mask of valid pixels, bool [height, width], or None if all are valid.

    """
    height, width = source.size
    longer = max(height, width)
    size = [max(1, round(side * PREVIEW / longer)) for side in (height, width)]
    rows, cols = _PreviewAxis.of(height, size[0], picked=classes), _PreviewAxis.of(width, size[1], picked=classes)
    band_count = 3 if source.count == 3 else 1
    dtype = source.dtype if classes or source.dtype == np.uint8 else np.result_type(source.dtype, np.float32)
    reduced = np.zeros((band_count, *size), dtype)
    seen = np.zeros(size, np.bool_)
    for across, down, raster in _blocks(source, rows, cols):
        valid = Raster(raster.array, nodata=nodata).valid()
        starts = (rows.first[down] - rows.first[down.start], cols.first[across] - cols.first[across.start])
        if classes:
            picked = np.ix_(*starts)
            reduced[:, down, across] = raster.array[:band_count][:, *picked]
            seen[down, across] = True if valid is None else valid[picked]
        else:
            means, has_valid = _means(raster.array[:band_count], valid, *starts)
            reduced[:, down, across] = np.rint(means) if dtype == np.uint8 else means
            seen[down, across] = has_valid
    return reduced, None if seen.all() else seen


def valid_mask(source: PreviewSource, nodata: float | None) -> NDArray[np.bool_] | None:
    """Read the validity mask of a raster, bool [height, width]. Return None if all pixels are valid.

    The mask is False where a band is nodata or NaN.
    """
    rows, cols = (_PreviewAxis.of(side, side, picked=True) for side in source.size)
    valid = np.ones(source.size, np.bool_)
    for across, down, raster in _blocks(source, rows, cols):
        piece = Raster(raster.array, nodata=nodata).valid()
        if piece is not None:
            valid[down, across] = piece
    return None if valid.all() else valid


@dataclass(frozen=True, slots=True)
class _PreviewAxis:
    """Ranges of raster pixels along one axis, one range for each pixel of a preview."""

    first: NDArray[np.intp]
    """Array with one index per preview pixel: the first raster pixel in the range of the preview pixel."""
    end: NDArray[np.intp]
    """Array with one index per preview pixel: the first raster pixel after the range of the preview pixel."""

    @classmethod
    def of(cls, old: int, new: int, *, picked: bool) -> _PreviewAxis:
        if picked:
            centres = (2 * np.arange(new) + 1) * old // (2 * new)
            return cls(centres, centres + 1)
        edges = np.arange(new + 1) * old // new
        return cls(edges[:-1], edges[1:])

    def groups(self, block: int) -> list[slice]:
        """Group the preview pixels along this axis into slices that each cover about ``block`` raster pixels.

        The raster is divided into blocks, and a preview pixel belongs to the first block that it covers.
        """
        starts = np.unique(self.first // block, return_index=True)[1].tolist()
        return [slice(start, stop) for start, stop in zip(starts, [*starts[1:], len(self.first)], strict=True)]


def _blocks(source: PreviewSource, rows: _PreviewAxis, cols: _PreviewAxis) -> Iterator[tuple[slice, slice, Raster]]:
    """Read a raster block by block, to make a preview of it.

    Yield the columns and the rows of the preview that a block covers, as slices, and the pixels of the block.
    """
    block = block_limit(source.count)
    for down in rows.groups(block):
        row, end = int(rows.first[down.start]), int(rows.end[down.stop - 1])
        across = cols.groups(block)
        spans = [(int(cols.first[group.start]), int(cols.end[group.stop - 1])) for group in across]
        windows = [Window(row, start, end - row, stop - start) for start, stop in spans]
        for group, raster in zip(across, source.windows(windows), strict=True):
            yield group, down, raster


def _means(
    bands: NDArray[Any], valid: NDArray[np.bool_] | None, rows: NDArray[np.intp], cols: NDArray[np.intp]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the mean of the valid pixels in each cell of a grid, and a mask of the cells that have valid pixels.

    Cells begin at the given ``rows`` and ``cols``. The mean of a cell without valid pixels is 0.
    """
    usable = np.ones(bands.shape[1:], np.bool_) if valid is None else valid
    counts = np.add.reduceat(np.add.reduceat(usable, rows, axis=0, dtype=np.int64), cols, axis=1)
    values = np.where(usable, bands, bands.dtype.type(0)).astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):  # the mean of infinities of both signs is NaN
        sums = np.add.reduceat(np.add.reduceat(values, rows, axis=1), cols, axis=2)
        return sums / np.maximum(counts, 1), counts > 0


def _coloured(ids: NDArray[Any], palette: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the palette colour of each class id, uint8 [height, width, 3]."""
    table = np.concatenate([palette, np.zeros((1, 3), np.uint8)])
    in_palette = (ids >= 0) & (ids < len(palette))
    coloured: NDArray[np.uint8] = table[np.where(in_palette, ids, len(palette)).astype(np.intp)]
    return coloured


def _stretched(
    bands: NDArray[Any], valid: NDArray[np.bool_] | None, limits: tuple[float, float] | None
) -> NDArray[np.uint8]:
    """Stretch values to uint8 [bands, height, width]. The lower limit becomes 0, and the upper 255.

    The limits are by default the smallest and the largest valid value. Values beyond them are cut off.
    """
    values = bands.astype(np.float64)  # changed in place: previews of scenes have millions of pixels
    usable = np.isfinite(values)
    if valid is not None:
        usable &= valid
    if not usable.any():
        return np.zeros(bands.shape, np.uint8)
    np.copyto(values, values.min(where=usable, initial=np.inf), where=~usable)
    if limits is not None:
        np.clip(values, *limits, out=values)
    low, high = (values.min(), values.max()) if limits is None else limits
    if low == high:
        return np.zeros(bands.shape, np.uint8)
    values *= 0.5  # otherwise the difference of the largest and the smallest float64 would overflow
    values -= 0.5 * low
    values /= 0.5 * high - 0.5 * low
    values *= 255.0
    return np.rint(values, out=values).astype(np.uint8)
