"""Bringing pixels to another grid, nearest or bilinear, by GDAL's warper.

GDAL gets arrays, not files: the pixels of a window are read here, behind the limits that hold for what strangers send,
and ``rasterio.warp.reproject`` does with them what ``WarpedVRT`` does with a file. The scale, by which GDAL averages,
is said to it: it would find out another one for each window. So is that places are to be exact, which rasterio 1.4
passes over: as everywhere in GDAL, they are then off by less than an eighth of a pixel, where systems differ.

The nearest pixels of parallel grids are copied by row and column, which takes a tenth of the time.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rasterio.enums import Resampling
from rasterio.errors import NotGeoreferencedWarning
from rasterio.warp import reproject

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.raster import Window
    from vllm_mmout.geo.raster.stack.alignment import Alignment

_HALF = 0.5 + 1e-6
"""What is added before a mean is cut to an integer; a half goes up, whatever its last digit in this window or that."""


def resampled(
    array: NDArray[Any],
    valid: NDArray[np.bool_] | None,
    alignment: Alignment,
    source: Window,
    window: Window,
    *,
    bilinear: bool,
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Bring pixels [bands, height, width] of a part of a raster, ``source``, to a window of another's grid.

    Nearest, each pixel is that in which its middle lies, of any type. Bilinear, it is the mean of those around it,
    weighted by how near they are, integers rounded; pixels that are not ``valid`` (as many as pixels; None: all are)
    have no weight. Either way it is valid where the nearest pixel is: gaps neither grow nor shrink.

    Returns:
        The pixels in the same dtype, and where all bands are valid, [height, width]; None: everywhere.

    """
    every = None if valid is None else np.logical_and.reduce(valid)
    if alignment.covers:
        rows, cols = alignment.nearest(source, window)
        made = array.take(rows, axis=1).take(cols, axis=2)
        seen = None if every is None else every.take(rows, axis=0).take(cols, axis=1)
    else:
        numbers = np.arange(array[0].size, dtype=np.int32).reshape(array.shape[1:])
        nearest = _warped(numbers, -1, alignment, source, window)
        seen = nearest >= 0
        made = array.reshape(len(array), -1)[:, nearest]
        made[:, ~seen] = 0
        seen &= True if every is None else every.ravel()[nearest]
    if bilinear:
        means = _means(array, valid, alignment, source, window)
        rounded = np.floor(means + _HALF) if array.dtype.kind in "biu" else means
        made = (rounded if valid is None else np.where(np.isnan(means), made, rounded)).astype(array.dtype)
    return made, seen


def _means(
    array: NDArray[Any], valid: NDArray[np.bool_] | None, alignment: Alignment, source: Window, window: Window
) -> NDArray[Any]:
    if array.dtype.kind == "c":
        real, imaginary = (_means(part, valid, alignment, source, window) for part in (array.real, array.imag))
        return real + 1j * imaginary
    exact = array.astype(np.float32 if array.dtype.itemsize < 4 else np.float64)  # holds each value as it is
    if valid is not None:
        exact[~valid] = np.nan
    if alignment.covers:  # one more at each side, which counts where the raster ends
        exact = np.pad(exact, ((0, 0), (1, 1), (1, 1)), "edge")
        source = type(source)(source.row - 1, source.col - 1, source.height + 2, source.width + 2)
    rows, cols = (min(1.0, 1 / pixels) for pixels in alignment.scale)
    options = {"UNIFIED_SRC_NODATA": "NO", "XSCALE": cols, "YSCALE": rows, "resampling": Resampling.bilinear}
    return _warped(exact, None if valid is None else np.nan, alignment, source, window, **options)


def _warped(
    array: NDArray[Any], nothing: float | None, alignment: Alignment, source: Window, window: Window, **options: Any
) -> NDArray[Any]:
    # rasterio hides its warning of the arrays that it makes files of from one thread at a time; this holds for all.
    warnings.filterwarnings("ignore", category=NotGeoreferencedWarning, module=r"rasterio\.")
    made = np.zeros((*array.shape[:-2], window.height, window.width), array.dtype)
    places = alignment.placing(source, window)
    reproject(array, made, src_nodata=nothing, dst_nodata=nothing, tolerance=0, **places, **options)
    return made
