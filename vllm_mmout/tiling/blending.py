"""Averaging what several tiles say of the same pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_AT_ONCE = 2**18
"""Numbers that are averaged at once: several bands of a small rectangle, one of a large."""


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

    It lies between the smallest and the largest of them: that of equal values is that value, bit by bit.

    Args:
        contributions: in an order that does not depend on when they came, since rounding does on it.
        nodata: a value that is not known. Neither are NaN, infinities, and what a contribution's mask hides.

    Returns:
        [bands, height, width] in the dtype of the values. Where nothing is known it is what the first valid
        contribution has.

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
    """The mean of some bands."""
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
    """Where values are measurements."""
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
