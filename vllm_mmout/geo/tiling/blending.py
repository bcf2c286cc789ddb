"""How overlapping tiles are blended: what each counts at a pixel, and the mean of what they say there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

_AT_ONCE = 2**18
"""Numbers that are averaged at once: several bands of a small rectangle, one of a large."""

Blend: TypeAlias = Literal["cosine", "linear", "none"]
"""The shape of the ramp from one tile to the next; "none" is a step."""


def axis_weights(starts: Sequence[int], tile: int, size: int, blend: Blend) -> list[NDArray[np.float64]]:
    """Weights of the tiles along one axis; that of a pixel is the product of its row's and its column's.

    Where two tiles share z pixels, the z / 4 at the end of each count nothing in it, since it saw little around them;
    between lies the ramp, ``t`` or ``sin(pi t / 2) ** 2``. A ramp over all of the overlap would give such pixels weight
    however large the overlap is, so that the result would never be that of the whole scene. At the scene's edge a tile
    counts fully. With "none" each tile ends in the middle of what it shares.

    Args:
        starts: first pixel of each tile, ascending.
        tile: pixels of a tile; one that reaches beyond ``size`` ends there.
        size: pixels of the scene.
        blend: shape of the ramp.

    Returns:
        One array a tile, of the length that it has within the scene, its positive weights in one run. At each pixel the
        weights of all tiles sum to one.

    """
    ends = [min(start + tile, size) for start in starts]
    borders = list(zip(starts[1:], ends[:-1], strict=True))  # what neighbours share: from the one's start to the end
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


def _rising(pixels: NDArray[np.int_], first: int, last: int, blend: Blend) -> NDArray[np.float64]:
    """From 0 after the first quarter of [first, last) to 1 before the last, at the centres of pixels."""
    if blend == "none" or first >= last:
        return (pixels >= (first + last) // 2).astype(np.float64)
    along = np.clip((4 * pixels + 2 - 3 * first - last) / (2 * (last - first)), 0.0, 1.0)
    return along if blend == "linear" else np.sin(along * (np.pi / 2)) ** 2


def _falling(pixels: NDArray[np.int_], first: int, last: int, blend: Blend) -> NDArray[np.float64]:
    """From 1 to 0: the mirror image, bit by bit, of what rises there."""
    if blend == "none":
        return 1.0 - _rising(pixels, first, last, blend)
    return _rising(-1 - pixels, -last, -first, blend)


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one tile says of a rectangle."""

    tile: int
    """Number of the tile."""
    values: NDArray[Any]
    """Floating point [bands, height, width]."""
    weight: NDArray[np.float64]
    """[height, width], positive; all of a rectangle sum to one."""
    valid: NDArray[np.bool_] | None = None
    """[height, width], False where there is no observation; None: everywhere valid."""


def averaged(contributions: Sequence[Contribution], nodata: float | None) -> NDArray[Any]:
    """The weighted mean at each pixel, of the values that are known there.

    It lies between the smallest and the largest of them: that of equal values is that value, bit by bit. Not known are
    nodata, NaN, infinities, and what a contribution's mask hides; where nothing is known it is what the first valid
    contribution has. Contributions come in an order of their own, since rounding depends on it.

    Returns:
        [bands, height, width] in the dtype of the values.

    """
    values = contributions[0].values
    if len(contributions) == 1:
        return values
    mean = np.empty(values.shape, values.dtype)
    bands, height, width = values.shape
    if nodata is not None:
        with np.errstate(over="ignore"):  # what is beyond the dtype no value equals
            nodata = values.dtype.type(nodata)
    step = max(1, _AT_ONCE // (height * width))
    for first in range(0, bands, step):
        some = slice(first, first + step)
        mean[some] = _mean([(one, one.values[some], _known(one, some, nodata)) for one in contributions])
    return mean


def _mean(of: Sequence[tuple[Contribution, NDArray[Any], NDArray[np.bool_]]]) -> NDArray[Any]:
    if all(known.all() for _, _, known in of):
        return _clipped_mean([(values, values, values, one.weight) for one, values, _ in of])
    # Of what is not known -0.0 is added, which changes no number, -0.0 included.
    filled = [
        (*(np.where(known, values, other) for other in (-0.0, np.inf, -np.inf)), np.where(known, one.weight, 0.0))
        for one, values, known in of
    ]
    nowhere = ~np.logical_or.reduce([known for _, _, known in of])
    filled[0][3][nowhere] = 1.0
    return np.where(nowhere, _unknown(of), _clipped_mean(filled))


def _clipped_mean(of: Sequence[tuple[NDArray[Any], ...]]) -> NDArray[np.float64]:
    """The mean of values that are given for the sum, for the least and for the largest, each with its weight."""
    values, low, high, count = of[0]
    total = values * count
    for values, least, most, weight in of[1:]:
        total += values * weight
        low, high, count = np.minimum(low, least), np.maximum(high, most), count + weight
    total /= count
    clipped: NDArray[np.float64] = np.clip(total, low, high, out=total)
    return clipped


def _known(one: Contribution, bands: slice, nodata: float | None) -> NDArray[np.bool_]:
    values = one.values[bands]
    known: NDArray[np.bool_] = np.isfinite(values)
    if nodata is not None and np.isfinite(nodata):
        known &= values != nodata
    if one.valid is not None:
        known &= one.valid
    return known


def _unknown(of: Sequence[tuple[Contribution, NDArray[Any], NDArray[np.bool_]]]) -> NDArray[Any]:
    """What stands where nothing is known."""
    found = of[-1][1]
    for one, values, _ in reversed(of):
        found = values if one.valid is None else np.where(one.valid, values, found)
    return found
