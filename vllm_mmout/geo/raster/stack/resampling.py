"""Resample pixels to another grid with GDAL's warper, by nearest neighbour or bilinear interpolation.

GDAL gets arrays instead of files, so that pixels are read under the limits for untrusted files.
``rasterio.warp.reproject`` then treats the arrays as ``WarpedVRT`` treats a file. The scale by which GDAL averages is
passed explicitly, since GDAL would estimate another scale for each window. Exact positions (``tolerance=0``) are
requested too, but rasterio 1.4 ignores this: between different coordinate systems, positions are then off by up to an
eighth of a pixel, as everywhere in GDAL.

If the two grids are parallel, the nearest pixels are copied by row and column, which takes a tenth of the time.
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
"""Number that is added to a mean before rounding down. It is slightly more than 0.5, so that halves round up despite
floating-point errors."""


def resampled(
    array: NDArray[Any],
    valid: NDArray[np.bool_] | None,
    alignment: Alignment,
    source: Window,
    window: Window,
    *,
    bilinear: bool,
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Resample pixels of one raster to the grid of another raster. Return the new pixels and a validity mask.

    Nearest takes the pixel that contains the centre of the new pixel. Bilinear takes the mean of the pixels around it,
    weighted by distance and rounded for integers; invalid pixels have no weight. In both cases a new pixel is valid if
    the nearest pixel is valid, so gaps neither grow nor shrink.

    Args:
        array: pixels [bands, height, width] of ``source``.
        valid: bool [bands, height, width]; None means that all pixels are valid.
        alignment: position of the raster in the grid of the reference.
        source: window of the raster that ``array`` covers.
        window: window of the reference to fill.
        bilinear: whether to interpolate instead of taking the nearest pixel.

    Returns:
        The pixels in the same dtype, and bool [height, width] that is True where all bands are valid, or None if all
        pixels are valid.

    """
    all_valid = None if valid is None else np.logical_and.reduce(valid)
    if alignment.covers:
        rows, cols = alignment.nearest(source, window)
        pixels = array.take(rows, axis=1).take(cols, axis=2)
        new_valid = None if all_valid is None else all_valid.take(rows, axis=0).take(cols, axis=1)
    else:
        numbers = np.arange(array[0].size, dtype=np.int32).reshape(array.shape[1:])
        nearest = _warped(numbers, -1, alignment, source, window)
        new_valid = nearest >= 0
        pixels = array.reshape(len(array), -1)[:, nearest]
        pixels[:, ~new_valid] = 0
        new_valid &= True if all_valid is None else all_valid.ravel()[nearest]
    if bilinear:
        means = _means(array, valid, alignment, source, window)
        rounded = np.floor(means + _HALF) if array.dtype.kind in "biu" else means
        pixels = (rounded if valid is None else np.where(np.isnan(means), pixels, rounded)).astype(array.dtype)
    return pixels, new_valid


def _means(
    array: NDArray[Any], valid: NDArray[np.bool_] | None, alignment: Alignment, source: Window, window: Window
) -> NDArray[Any]:
    if array.dtype.kind == "c":
        real, imaginary = (_means(part, valid, alignment, source, window) for part in (array.real, array.imag))
        return real + 1j * imaginary
    exact = array.astype(np.float32 if array.dtype.itemsize < 4 else np.float64)  # represents each value exactly
    if valid is not None:
        exact[~valid] = np.nan
    if alignment.covers:  # repeat the edge pixels beyond the raster's ends
        exact = np.pad(exact, ((0, 0), (1, 1), (1, 1)), "edge")
        source = type(source)(source.row - 1, source.col - 1, source.height + 2, source.width + 2)
    rows, cols = (min(1.0, 1 / pixels) for pixels in alignment.scale)
    options = {"UNIFIED_SRC_NODATA": "NO", "XSCALE": cols, "YSCALE": rows, "resampling": Resampling.bilinear}
    return _warped(exact, None if valid is None else np.nan, alignment, source, window, **options)


def _warped(
    array: NDArray[Any], nothing: float | None, alignment: Alignment, source: Window, window: Window, **options: Any
) -> NDArray[Any]:
    # rasterio suppresses its warning about arrays without a transform in one thread only; this filter covers all.
    warnings.filterwarnings("ignore", category=NotGeoreferencedWarning, module=r"rasterio\.")
    target = np.zeros((*array.shape[:-2], window.height, window.width), array.dtype)
    places = alignment.warp_arguments(source, window)
    reproject(array, target, src_nodata=nothing, dst_nodata=nothing, tolerance=0, **places, **options)
    return target
