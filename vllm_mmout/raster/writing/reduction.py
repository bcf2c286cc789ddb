"""One level of overviews from the level above, pixel for pixel as GDAL makes it (gcore/overview.cpp of GDAL 3.10).

A pixel of the smaller level covers a fraction of pixels of the larger one where a side is odd: `old / new` is then less
than 2. "average" weighs what is covered in part; "nearest" takes one pixel. GDAL computes integers of 8 and 16 bits in
float32, wider ones in float64, and has a shortcut in the pixels' own type for two by two pixels of a raster without
nodata; both are followed here, as they round differently.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

_EPSILON = 1e-8
"""What GDAL allows for errors of rounding in the places of pixels."""
_TAPS = 3
"""Pixels along one axis that make one, at most."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What the numbers of a raster mean, as far as overviews and statistics depend on it."""

    nodata: float | None = None
    """Value that means "no observation"."""
    classes: bool = False
    """Whether numbers name classes, which have no mean: overviews take one of them."""

    def same_as(self, other: Meaning) -> bool:
        """Whether both are equal, NaN with NaN."""
        mine, others = (np.nan if one.nodata is None else one.nodata for one in (self, other))
        alike = (self.nodata is None) == (other.nodata is None)
        return alike and self.classes == other.classes and (mine == others or (mine != mine and others != others))  # noqa: PLR0124 - NaN alone differs from itself


def unobserved(pixels: NDArray[Any], nodata: float | None) -> NDArray[np.bool_] | None:
    """True where pixels are nodata, None where that cannot be; floating point next to it counts too, as in GDAL."""
    if nodata is None:
        return None
    if pixels.dtype.kind != "f":
        return np.asarray(pixels == pixels.dtype.type(int(nodata)))
    value = pixels.dtype.type(nodata)
    if np.isnan(value):
        return np.asarray(np.isnan(pixels))
    same = pixels == value
    with np.errstate(all="ignore"):
        near = np.abs(pixels - value) < np.finfo(np.float32).eps * 2 * np.abs(pixels + value)
    return np.asarray(same | near)


@dataclass(frozen=True, slots=True)
class Axis:
    """How pixels become fewer along one axis."""

    old: int
    """Pixels of the larger level."""
    new: int
    """Pixels of the smaller one: half of them, rounded up."""

    @property
    def ratio(self) -> float:
        """Pixels of the larger level in one of the smaller."""
        return self.old / self.new

    def covered(self, start: int, stop: int) -> tuple[int, int]:
        """The first pixel that a stretch of the smaller level is made of, and the one after the last."""
        return int(start * self.ratio + _EPSILON), min(self.old, int(np.ceil(stop * self.ratio - _EPSILON)))

    def picked(self, start: int, stop: int) -> NDArray[np.intp]:
        """The pixel that "nearest" takes for each of a stretch."""
        return (0.5 + np.arange(start, stop) * self.ratio).astype(np.intp)

    def taps(self, start: int, stop: int) -> _Taps:
        """What "average" takes for each of a stretch."""
        places = np.arange(start, stop, dtype=np.float64)
        begin, end = places * self.ratio, (places + 1) * self.ratio
        first = (begin + _EPSILON).astype(np.intp)
        last = np.minimum(np.ceil(end - _EPSILON).astype(np.intp), self.old)
        number = last - first
        left = np.where(number == 1, 1.0, 1 - (begin - first))
        right = 1 - (last - end)
        return _Taps(
            np.stack([first, np.minimum(first + 1, self.old - 1), last - 1]),
            np.stack([left, np.ones_like(left), right]),
            np.stack([number > 0, number > 2, number > 1]),
        )


@dataclass(frozen=True, slots=True)
class _Taps:
    """Up to three pixels that make one: the first, the one in the middle where there are three, the last."""

    place: NDArray[np.intp]
    """[3, n]."""
    weight: NDArray[np.float64]
    """[3, n]."""
    used: NDArray[np.bool_]
    """[3, n]."""

    @property
    def pairs(self) -> NDArray[np.bool_]:
        """Where two pixels make one, [n]."""
        return np.asarray(self.used[2] & ~self.used[1])

    @property
    def halves(self) -> bool:
        """Whether two pixels make one everywhere, from the first pixel on, and count alike."""
        number = self.place.shape[1]
        last = self.place[0][-1] == 2 * (number - 1)
        return bool(last and self.pairs.all() and (self.weight[::2] == 1).all())


@dataclass(frozen=True, slots=True)
class Reduction:
    """How a rectangle of the smaller level is made of one of the larger."""

    rows: Axis
    cols: Axis
    meaning: Meaning

    def __call__(self, pixels: NDArray[Any], rows: tuple[int, int], cols: tuple[int, int]) -> NDArray[Any]:
        """Reduce.

        Args:
            pixels: [height, width] of the larger level, those that the rectangle covers.
            rows: first row of the rectangle in the smaller level, and the one after the last.
            cols: its columns alike.

        Returns:
            The rectangle, of the same dtype.

        """
        top, left = self.rows.covered(*rows)[0], self.cols.covered(*cols)[0]
        if self.meaning.classes:
            return pixels[np.ix_(self.rows.picked(*rows) - top, self.cols.picked(*cols) - left)]
        down, across = _shifted(self.rows.taps(*rows), top), _shifted(self.cols.taps(*cols), left)
        with np.errstate(all="ignore"):  # infinities and NaN go through as in GDAL
            hidden = unobserved(pixels, self.meaning.nodata)
            short = hidden is None and self.cols.old == 2 * self.cols.new
            pairs = down.pairs & short
            if pairs.all():
                means = np.empty((len(pairs), cols[1] - cols[0]), _working(pixels.dtype))
            else:
                means = self._means(pixels, hidden, down, across)
            if pairs.any():
                tail = self.cols.new - self.cols.new % 4 - cols[0]
                upper, lower = pixels[down.place[0][pairs]], pixels[down.place[2][pairs]]
                means[pairs] = _fours(upper, lower, means.dtype, max(0, tail))
            return _stored(means, pixels.dtype)

    def _means(
        self, pixels: NDArray[Any], hidden: NDArray[np.bool_] | None, down: _Taps, across: _Taps
    ) -> NDArray[Any]:
        """The weighted means, in the type that GDAL computes with."""
        working = _working(pixels.dtype)
        values = pixels.astype(np.float64)
        if hidden is not None:
            values[hidden] = 0
        total = _weighed(_weighed(values, across, axis=1), down, axis=0)
        if hidden is None:
            full = (_full_weight(taps) for taps in (across, down))
            weight = next(full) * next(full)[:, None]
            return _rounded(total / weight, working)
        seen = (~hidden).astype(np.float64)
        weight = _weighed(_weighed(seen, across, axis=1), down, axis=0)
        means = _rounded(total / weight, working)
        some = weight > 0 if across.halves and down.halves else _weighed_any(~hidden, across, down)
        return self._with_nodata(means, some, pixels.dtype)

    def _with_nodata(self, means: NDArray[Any], some: NDArray[np.bool_], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Nodata where nothing was observed, and a neighbour of it where a mean happens to be the same."""
        nodata = self.meaning.nodata
        if nodata is None:
            return means
        value = means.dtype.type(dtype.type(nodata if dtype.kind == "f" else int(nodata)))
        means[means == value] = means.dtype.type(_beside(dtype, nodata))
        means[~some] = value
        return means


def _working(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What GDAL computes means of such pixels in."""
    if dtype in (np.uint8, np.uint16):
        return dtype
    return np.dtype(np.float32 if dtype in (np.int8, np.int16, np.float16, np.float32) else np.float64)


def _shifted(taps: _Taps, first: int) -> _Taps:
    return _Taps(taps.place - first, taps.weight, taps.used)


def _weighed(values: NDArray[np.float64], taps: _Taps, *, axis: int) -> NDArray[np.float64]:
    """The weighted sums along an axis, added from the first pixel to the last."""
    if taps.halves:
        parts = (slice(start, start + 2 * taps.place.shape[1], 2) for start in (0, 1))
        one, other = (values[:, part] if axis else values[part] for part in parts)
        return one + other
    shape = (1, -1) if axis else (-1, 1)
    sums: NDArray[np.float64] = np.take(values, taps.place[0], axis=axis)
    sums *= taps.weight[0].reshape(shape)
    for tap in range(1, _TAPS):
        used = taps.used[tap]
        if used.any():
            more = np.take(values, taps.place[tap], axis=axis)
            more *= taps.weight[tap].reshape(shape)
            np.add(sums, more, out=sums, where=used.reshape(shape))
    return sums


def _weighed_any(seen: NDArray[np.bool_], across: _Taps, down: _Taps) -> NDArray[np.bool_]:
    """Whether any of the pixels that make one was observed, however little of it counts."""
    for taps, axis in ((across, 1), (down, 0)):
        shape = (1, -1) if axis else (-1, 1)
        pieces = [np.take(seen, taps.place[tap], axis=axis) & taps.used[tap].reshape(shape) for tap in range(_TAPS)]
        seen = pieces[0] | pieces[1] | pieces[2]
    return seen


def _full_weight(taps: _Taps) -> NDArray[np.float64]:
    weight: NDArray[np.float64] = taps.weight[0].copy()
    weight[taps.used[1]] += 1
    weight[taps.used[2]] += taps.weight[2][taps.used[2]]
    return weight


def _fours(upper: NDArray[Any], lower: NDArray[Any], working: DTypeLike, tail: int) -> NDArray[Any]:
    """The means of two by two pixels, in the type and in the order in which GDAL adds them.

    Args:
        upper: the upper row of each pair, [n, 2 * width].
        lower: the lower one.
        working: type that GDAL computes with.
        tail: column from which on fewer than four are left, which GDAL adds one after the other.

    """
    one, two, three, four = upper[:, ::2], upper[:, 1::2], lower[:, ::2], lower[:, 1::2]
    kind = np.dtype(working)
    if kind.kind == "u":
        wide = [part.astype(np.uint32) for part in (one, two, three, four)]
        return ((wide[0] + wide[1] + wide[2] + wide[3] + np.uint32(2)) >> np.uint32(2)).astype(kind)
    one, two, three, four = (part.astype(kind, copy=False) for part in (one, two, three, four))
    in_order = ((one + two) + three) + four
    if kind == np.float32:
        in_order[:, :tail] = ((one + three) + (two + four))[:, :tail]
    return np.asarray(in_order * np.array(0.25, kind))


def _rounded(means: NDArray[np.float64], working: np.dtype[Any]) -> NDArray[Any]:
    """Doubles in the type that GDAL computes with."""
    if working.kind == "f":
        return means.astype(working)
    limit = np.iinfo(working).max
    return np.clip(np.nan_to_num(means) + 0.5, 0, limit).astype(working)


def _stored(means: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Means in the type of the pixels: the nearest integer, halves away from 0; float16 is cut, as in GDAL."""
    if means.dtype == dtype:
        return means
    if dtype.kind == "f":
        near = means.astype(dtype)
        return np.asarray(np.where(np.abs(near) > np.abs(means), np.nextafter(near, dtype.type(0)), near))
    half = means.dtype.type(0.5)
    rounded = np.trunc(np.where(means > 0, means + half, means - half))
    limits = np.iinfo(dtype)
    low, high = rounded <= limits.min, rounded >= limits.max
    numbers = np.where(low | high, 0, rounded).astype(dtype)
    numbers[low], numbers[high] = limits.min, limits.max
    return numbers


def _beside(dtype: np.dtype[Any], nodata: float) -> float:
    """What GDAL puts where a mean happens to be nodata: the next number above, or below the largest."""
    if dtype.kind == "f":
        working = _working(dtype).type
        limit = np.finfo(working).max
        value = working(nodata)
        return float(np.nextafter(value, -limit if value == limit else limit))
    return int(nodata) - 1 if nodata == np.iinfo(dtype).max else int(nodata) + 1
