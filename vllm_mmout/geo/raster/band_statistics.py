"""Compute statistics of the bands of a raster, in the form of GDAL's metadata items (STATISTICS_MEAN, ...).

GDAL's own statistics are not used, because they include a VRT's nodata, infinities, and sometimes NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vllm_mmout.geo.raster.nodata import as_pixels_have_it

_MOST_COMPARED = 8
"""Largest number of values for which comparing all pixels with each value is faster than a general histogram."""


class Moments(NamedTuple):
    """Count, range, mean and variance of the valid pixels of a band, or of a part of a band."""

    pixels: int
    low: float
    high: float
    mean: float
    variance: float


def file_statistics(name: str, dtype: np.dtype[Any], nodata: float | None) -> list[dict[str, str]]:
    """Return the statistics of each band of a raster file as GDAL metadata items. Nodata and NaN do not count."""
    import rasterio

    with rasterio.open(name) as file, np.errstate(all="ignore"):
        hidden = _stored_nodata(nodata, dtype, np.dtype(file.dtypes[0]))
        moments: list[list[Moments | None]] = [[] for _ in file.indexes]
        # All bands of a window at once: rasterio lists the blocks of all bands for each band that is asked for.
        for _, window in file.block_windows(1):
            for band, plane in zip(moments, file.read(window=window), strict=True):
                band.append(_of_plane(plane, hidden))
        return [_items(parts, file.height * file.width) for parts in moments]


def histogram_statistics(counts: NDArray[np.int64], dtype: np.dtype[Any], nodata: float | None) -> list[dict[str, str]]:
    """Compute each band's statistics from its `histogram`, without nodata pixels, as GDAL metadata items.

    ``counts`` holds one histogram per band, [bands, values].
    """
    values = np.arange(counts.shape[1], dtype=f"u{dtype.itemsize}").view(dtype)
    hidden = _stored_nodata(nodata, dtype, dtype)
    return [_items([_moments(values[times > 0], times[times > 0], hidden)], int(times.sum())) for times in counts]


def histogram(plane: NDArray[Any], likely: Sequence[int] = ()) -> NDArray[np.int64]:
    """Count the pixels with each 8-bit or 16-bit value in ``plane``. Return an array of 256 or 65536 counts.

    The index of a count is the value, read as an unsigned integer. If no pixel has a value outside of ``likely``, and
    ``likely`` is short, counting is much faster, and other threads run meanwhile.
    """
    if 0 < len(likely) <= _MOST_COMPARED:
        unsigned = plane.view(f"u{plane.itemsize}")
        counts = np.zeros(2 ** (8 * plane.itemsize), np.int64)
        counts[likely] = [np.count_nonzero(unsigned == value) for value in likely]
        if counts.sum() == plane.size:
            return counts
    if plane.itemsize == 1:
        return np.array(Image.fromarray(plane.view(np.uint8)).histogram(), np.int64)  # three times as fast as numpy's
    return np.bincount(plane.view(np.uint16).ravel(), minlength=2**16).astype(np.int64, copy=False)


def _stored_nodata(nodata: float | None, dtype: np.dtype[Any], stored_dtype: np.dtype[Any]) -> float | np.generic:
    """Convert a nodata value to the dtype of the stored pixels. Return NaN if ``nodata`` is None."""
    return math.nan if nodata is None else stored_dtype.type(as_pixels_have_it(nodata, dtype))


def _of_plane(plane: NDArray[Any], nodata: float | np.generic) -> Moments | None:
    values, times = plane.ravel(), np.ones(1, np.int64)
    if plane.dtype == np.uint8:
        times = histogram(plane)
        values, times = np.flatnonzero(times), times[times > 0]
    return _moments(values, times, nodata)


def _moments(values: NDArray[Any], times: NDArray[Any], nodata: float | np.generic) -> Moments | None:
    """Return the statistics of ``values``, without NaN and nodata. ``times`` tells how often each value occurs.

    Return None if no value is left.
    """
    valid = ~np.isnan(values) & (values != nodata)
    values, times = values[valid].astype(np.float64), np.broadcast_to(times, valid.shape)[valid]
    if not values.size:
        return None
    low = values.min()  # subtracted, so that constant pixels have a deviation of exactly 0
    mean = low + np.average(values - low, weights=times)
    variance = np.average(np.square(values - mean), weights=times)
    return Moments(int(times.sum()), low, values.max(), mean, variance)


def _items(parts: Iterable[Moments | None], pixel_count: int) -> dict[str, str]:
    """Combine the statistics of the parts of a band into GDAL's metadata items, such as STATISTICS_MEAN.

    ``pixel_count`` includes invalid pixels. The result is empty if no pixel is valid or a result is not finite.
    """
    moments = [part for part in parts if part is not None]
    if not moments:
        return {}
    counts, lows, highs, means, variances = (np.array(numbers) for numbers in zip(*moments, strict=True))
    low, count = lows.min(), int(counts.sum())
    mean = low + np.average(means - low, weights=counts)
    deviation = math.sqrt(np.average(variances + np.square(means - mean), weights=counts))
    numbers = {"MINIMUM": low, "MAXIMUM": highs.max(), "MEAN": mean, "STDDEV": deviation}
    if not np.isfinite(list(numbers.values())).all():
        return {}
    texts = {name: f"{number:.14g}" for name, number in numbers.items()}
    percent = f"{100 * count / pixel_count:.4g}"
    texts["VALID_PERCENT"] = "99.999" if percent == "100" and count < pixel_count else percent
    return {f"STATISTICS_{name}": text for name, text in texts.items()}
