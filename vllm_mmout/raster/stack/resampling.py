"""Bringing pixels to another grid, nearest or bilinear, as GDAL's warper does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from vllm_mmout.raster.window import Window

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vllm_mmout.raster.stack.alignment import Alignment, Axis

_Taps: TypeAlias = "tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]"


def source_window(alignment: Alignment, window: Window, *, bilinear: bool) -> Window:
    """The pixels of a raster that a window of the reference grid is made of."""
    row, height = _needed(alignment.rows, window.row, window.height, bilinear=bilinear)
    col, width = _needed(alignment.cols, window.col, window.width, bilinear=bilinear)
    return Window(row, col, height, width)


def nearest(array: NDArray[Any], alignment: Alignment, window: Window) -> NDArray[Any]:
    """A window of the reference grid, each pixel that in which its middle lies.

    Args:
        array: [..., height, width], the pixels of `source_window`.
        alignment: how the raster lies in the reference grid.
        window: what to make, in pixels of the reference grid.

    Returns:
        [..., window.height, window.width]; beyond the raster's edge its last pixels are repeated.

    """
    source = source_window(alignment, window, bilinear=False)
    if alignment.exact and (source.height, source.width) == (window.height, window.width):
        return array
    rows = alignment.rows.nearest(window.row, window.height) - source.row
    cols = alignment.cols.nearest(window.col, window.width) - source.col
    return array.take(rows, axis=-2).take(cols, axis=-1)


def bilinear(
    array: NDArray[Any], valid: NDArray[np.bool_] | None, alignment: Alignment, window: Window
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """A window of the reference grid, each pixel the mean of four, weighted by how near they are.

    Pixels that are not valid have no weight. The result is valid where the nearest pixel is: gaps neither grow nor
    shrink. Where the raster's pixels are smaller than the reference's, as they may be along one axis, four are taken
    all the same.

    Args:
        array: [height, width], the pixels of `source_window`.
        valid: [height, width], False for what is no observation; None: all are.
        alignment: how the raster lies in the reference grid.
        window: what to make, in pixels of the reference grid.

    Returns:
        [window.height, window.width] in the dtype of ``array``, integers rounded, and where it is valid.

    """
    source = source_window(alignment, window, bilinear=True)
    rows = _taps(alignment.rows, window.row, window.height, source.row)
    cols = _taps(alignment.cols, window.col, window.width, source.col)
    exact = np.float32 if array.dtype.itemsize < 4 else np.float64  # holds each value as it is
    if valid is None:
        return _as(array.dtype, _mixed(array.astype(exact), rows, cols)), None
    sums = _mixed(np.where(valid, array, 0).astype(exact), rows, cols)
    weights = _mixed(valid.astype(exact), rows, cols)
    near = valid.take(alignment.rows.nearest(window.row, window.height) - source.row, axis=0).take(
        alignment.cols.nearest(window.col, window.width) - source.col, axis=1
    )
    mean = np.divide(sums, weights, out=np.zeros_like(sums), where=near)
    return _as(array.dtype, mean), near


def _needed(axis: Axis, start: int, count: int, *, bilinear: bool) -> tuple[int, int]:
    """First pixel and number of pixels."""
    if bilinear:
        lower, upper, _ = axis.between(start, count)
    else:
        lower = upper = axis.nearest(start, count)
    first = int(lower[0])
    return first, int(upper[-1]) + 1 - first


def _taps(axis: Axis, start: int, count: int, first: int) -> _Taps:
    lower, upper, weight = axis.between(start, count)
    return lower - first, upper - first, weight


def _mixed(array: NDArray[Any], rows: _Taps, cols: _Taps) -> NDArray[Any]:
    """Each pixel from two rows, then from two columns."""
    lower, upper, weight = rows
    part = weight[:, np.newaxis].astype(array.dtype)
    array = array[lower] * (1 - part) + array[upper] * part
    lower, upper, weight = cols
    part = weight.astype(array.dtype)
    mixed: NDArray[Any] = array[:, lower] * (1 - part) + array[:, upper] * part
    return mixed


def _as(dtype: np.dtype[Any], values: NDArray[Any]) -> NDArray[Any]:
    """The values in a dtype, rounded to the next integer where it has no others."""
    if dtype.kind in "iu":
        values = np.floor(values + 0.5)
    return values.astype(dtype)
