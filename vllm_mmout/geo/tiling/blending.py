"""Blend overlapping tiles: compute each tile's weight at each pixel, and the weighted mean of the tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

_AT_ONCE = 2**18
"""Number of pixel values that are averaged at a time, to limit the memory. Larger arrays are averaged a few bands at a
time."""

Blend: TypeAlias = Literal["cosine", "linear", "none"]
"""Shape of the transition between overlapping tiles: a cosine ramp, a linear ramp, or a hard edge ("none")."""


def axis_weights(starts: Sequence[int], tile: int, size: int, blend: Blend) -> list[NDArray[np.float64]]:
    """Return the blending weights of the tiles along one axis (rows or columns) of a scene.

    A tile's weight at a pixel is the product of its weight in the pixel's row and its weight in the pixel's column.

    If two tiles overlap by z pixels, each tile has weight 0 in its outermost z / 4 pixels, since the model sees too
    little context there. The ramp lies between these quarters: ``t`` for "linear", ``sin(pi t / 2) ** 2`` for "cosine".
    A ramp over the whole overlap would give weight to the outermost pixels, so even with a large overlap the result
    would differ from that of the whole scene. At the edge of the scene a tile has its full weight. With "none" each
    tile ends in the middle of the overlap.

    Args:
        starts: first pixel of each tile, ascending.
        tile: length of a tile in pixels. A tile that reaches beyond ``size`` is cut off there.
        size: length of the scene in pixels.
        blend: shape of the ramp.

    Returns:
        An array for each tile, as long as the part of the tile within the scene. Its positive weights are contiguous.
        At each pixel the weights of all tiles sum to 1.

    """
    ends = [min(start + tile, size) for start in starts]
    borders = list(zip(starts[1:], ends[:-1], strict=True))  # (start, end) of the overlap of each two neighbours
    weights = []
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        weight, pixels = np.ones(end - start), np.arange(start, end)
        if number:
            weight *= _rising(pixels, *borders[number - 1], blend)
        if number < len(borders):
            weight *= _falling(pixels, *borders[number], blend)
        weights.append(weight)
    total = np.zeros(size)
    for start, end, weight in zip(starts, ends, weights, strict=True):
        total[start:end] += weight
    return [weight / total[start:end] for start, end, weight in zip(starts, ends, weights, strict=True)]


def _rising(pixels: NDArray[np.int_], start: int, end: int, blend: Blend) -> NDArray[np.float64]:
    """Return the blending weights of a tile at ``pixels`` along an axis. The weights rise towards the tile's middle.

    The previous tile overlaps the pixels from ``start`` to ``end``. The weights rise from 0 to 1 in the middle half of
    the overlap.
    """
    if blend == "none" or start >= end:
        return (pixels >= (start + end) // 2).astype(np.float64)
    along = np.clip((4 * pixels + 2 - 3 * start - end) / (2 * (end - start)), 0.0, 1.0)
    return along if blend == "linear" else np.sin(along * (np.pi / 2)) ** 2


def _falling(pixels: NDArray[np.int_], start: int, end: int, blend: Blend) -> NDArray[np.float64]:
    """Return the blending weights of a tile at ``pixels`` along an axis. The weights fall towards the tile's end.

    The next tile overlaps the pixels from ``start`` to ``end``. The weights fall from 1 to 0, and mirror the weights of
    `_rising` bit for bit.
    """
    if blend == "none":
        return 1.0 - _rising(pixels, start, end, blend)
    return _rising(-1 - pixels, -end, -start, blend)


@dataclass(frozen=True, slots=True)
class Contribution:
    """Pixel values of one tile within a rectangle of the result, with their blending weights."""

    tile: int
    """Index of the tile in its grid."""
    values: NDArray[Any]
    """Floating-point pixel values [bands, height, width]."""
    weight: NDArray[np.float64]
    """Positive blending weight of each pixel, [height, width]. The weights of all overlapping tiles sum to 1."""
    valid: NDArray[np.bool_] | None = None
    """Mask [height, width], False at pixels without an observation. None if all pixels have an observation."""


def averaged(contributions: Sequence[Contribution], nodata: float | None) -> NDArray[Any]:
    """Return the weighted mean of overlapping tiles at each pixel. Missing values (nodata, NaN) are left out.

    Unknown are nodata, NaN, infinities, and values that a contribution's mask hides. The mean is clipped to the range
    of the known values, so the mean of equal values is exactly that value. If no value is known at a pixel, the value
    of the first contribution whose mask is True there is taken. Pass the contributions in a fixed order, since rounding
    depends on it.

    Returns:
        The mean [bands, height, width], in the dtype of the values.

    """
    values = contributions[0].values
    if len(contributions) == 1:
        return values
    mean = np.empty(values.shape, values.dtype)
    bands, height, width = values.shape
    if nodata is not None:
        with np.errstate(over="ignore"):  # nodata beyond the dtype's range becomes infinite and equals no value
            nodata = values.dtype.type(nodata)
    step = max(1, _AT_ONCE // (height * width))
    for first in range(0, bands, step):
        chunk = slice(first, first + step)
        mean[chunk] = _mean([(part, part.values[chunk], _known(part, chunk, nodata)) for part in contributions])
    return mean


def _mean(parts: Sequence[tuple[Contribution, NDArray[Any], NDArray[np.bool_]]]) -> NDArray[Any]:
    if all(mask.all() for _, _, mask in parts):
        return _clipped_mean([(values, values, values, part.weight) for part, values, _ in parts])
    # Unknown values are replaced by -0.0 in the sum: adding it changes no number, not even -0.0.
    filled = [
        (*(np.where(mask, values, filler) for filler in (-0.0, np.inf, -np.inf)), np.where(mask, part.weight, 0.0))
        for part, values, mask in parts
    ]
    unknown = ~np.logical_or.reduce([mask for _, _, mask in parts])
    filled[0][3][unknown] = 1.0
    return np.where(unknown, _fallback(parts), _clipped_mean(filled))


def _clipped_mean(parts: Sequence[tuple[NDArray[Any], ...]]) -> NDArray[np.float64]:
    """Return the weighted mean of overlapping tiles at each pixel, clipped to the range of the tiles' values.

    Each part has the values for the sum, for the minimum and for the maximum, and the weights. The three arrays of
    values differ only where a value is unknown.
    """
    values, low, high, total_weight = parts[0]
    total = values * total_weight
    for values, minimum, maximum, weight in parts[1:]:
        total += values * weight
        low, high, total_weight = np.minimum(low, minimum), np.maximum(high, maximum), total_weight + weight
    total /= total_weight
    clipped: NDArray[np.float64] = np.clip(total, low, high, out=total)
    return clipped


def _known(part: Contribution, bands: slice, nodata: float | None) -> NDArray[np.bool_]:
    values = part.values[bands]
    mask: NDArray[np.bool_] = np.isfinite(values)
    if nodata is not None and np.isfinite(nodata):
        mask &= values != nodata
    if part.valid is not None:
        mask &= part.valid
    return mask


def _fallback(parts: Sequence[tuple[Contribution, NDArray[Any], NDArray[np.bool_]]]) -> NDArray[Any]:
    """Return fallback values, used for pixels where the values of all tiles are missing (nodata, NaN).

    The fallback value of a pixel is the value of the first tile whose mask ``valid`` is True at the pixel, or of the
    last tile if no mask is True.
    """
    fallback = parts[-1][1]
    for part, values, _ in reversed(parts):
        fallback = values if part.valid is None else np.where(part.valid, values, fallback)
    return fallback
