"""Statistics of bands, computed block by block in any order; the names and the digits are GDAL's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from vllm_mmout.raster.writing.reduction import unobserved

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Found: TypeAlias = tuple[float, float, float, float]
"""Smallest, largest, mean, and sum of squared differences from the mean."""
_NOTHING: _Found = (0.0, 0.0, 0.0, 0.0)


class Statistics:
    """Smallest, largest, mean and standard deviation of the observed pixels of each band.

    What each block gives is kept, and put together in the order of the blocks: the result is the same, bit by bit,
    whichever came first.

    Args:
        bands: number of bands.
        grid: rows and columns of blocks.

    """

    def __init__(self, bands: int, grid: tuple[int, int]) -> None:
        self._pixels = np.zeros((bands, *grid), np.int32)
        self._seen = np.zeros((bands, *grid), np.int32)
        self._extremes = np.zeros((2, bands, *grid))
        self._moments = np.zeros((2, bands, *grid))
        """Mean, and sum of squared differences from it."""

    def add(self, band: int, row: int, col: int, plane: NDArray[Any], nodata: float | None) -> None:
        """Take the pixels of one block of one band.

        Args:
            band: number of the band.
            row: row of the block.
            col: column of the block.
            plane: [height, width], what lies in the raster.
            nodata: value that does not count; nor does NaN.

        """
        with np.errstate(all="ignore"):  # infinities have no mean
            seen, found = (_of_bytes if plane.dtype == np.uint8 else _of_numbers)(plane, nodata)
        place = (band, row, col)
        self._pixels[place], self._seen[place] = plane.size, seen
        self._extremes[:, *place], self._moments[:, *place] = found[:2], found[2:]

    def items(self) -> list[dict[str, str]]:
        """The items of each band's metadata; none for a band without an observed pixel, or with infinite ones."""
        return [self._of(band) for band in range(len(self._seen))]

    def _of(self, band: int) -> dict[str, str]:
        some = self._seen[band] > 0
        if not some.any():
            return {}
        counts = self._seen[band][some].astype(np.float64)
        means, squares = self._moments[0, band][some], self._moments[1, band][some]
        number = math.fsum(counts.tolist())
        with np.errstate(all="ignore"):
            low, high = self._extremes[0, band][some].min(), self._extremes[1, band][some].max()
            if not (math.isfinite(low) and math.isfinite(high) and np.isfinite(squares).all()):
                return {}
            shift = means[0]  # so that the mean of equal ones is that
            mean = shift + math.fsum((counts / number * (means - shift)).tolist())
            parts = squares / number + counts / number * np.square(means - mean)
        deviation = math.sqrt(math.fsum(parts.tolist())) if np.isfinite(parts).all() else math.inf
        found = {"MINIMUM": low, "MAXIMUM": high, "MEAN": mean, "STDDEV": deviation}
        if not all(math.isfinite(value) for value in found.values()):
            return {}
        texts = {f"STATISTICS_{name}": f"{value:.14g}" for name, value in found.items()}
        return {**texts, "STATISTICS_VALID_PERCENT": _percent(int(number), int(self._pixels[band].sum(dtype=np.int64)))}


def _of_bytes(plane: NDArray[np.uint8], nodata: float | None) -> tuple[int, _Found]:
    """Those of bytes, from how often each comes: that is exact, and fast."""
    counts = np.bincount(plane.reshape(-1), minlength=256)
    if nodata is not None:
        counts[int(nodata)] = 0
    numbers = np.flatnonzero(counts)
    if not numbers.size:
        return 0, _NOTHING
    times, seen = counts[numbers].astype(np.float64), int(counts.sum())
    mean = float((times * numbers).sum()) / seen
    squares = float((times * np.square(numbers - mean)).sum())
    return seen, (float(numbers[0]), float(numbers[-1]), mean, squares)


def _of_numbers(plane: NDArray[Any], nodata: float | None) -> tuple[int, _Found]:
    """Those of any numbers; added in the same layout always, as sums depend on it."""
    values = np.ascontiguousarray(plane).reshape(-1)
    hidden = unobserved(values, nodata)
    if values.dtype.kind == "f":
        missing = np.isnan(values)
        hidden = missing if hidden is None else hidden | missing
    if hidden is not None and hidden.any():
        values = values[~hidden]
    if not values.size:
        return 0, _NOTHING
    wide = values.astype(np.float64)
    low, high, mean = float(wide.min()), float(wide.max()), float(wide.mean())
    wide -= mean
    np.square(wide, out=wide)
    return values.size, (low, high, mean, float(wide.sum()))


def _percent(seen: int, pixels: int) -> str:
    """As in GDAL: few digits, and 100 only where every pixel counts."""
    if seen == pixels:
        return "100"
    text = f"{100 * seen / pixels:.4g}"
    return "99.999" if text == "100" else text
