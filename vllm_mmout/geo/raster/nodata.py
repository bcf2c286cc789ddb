"""Convert nodata values between the texts in files and pixel dtypes, and find nodata pixels."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vllm_mmout.errors import SaveError

_FEWER_DIGITS = 1e-6
"""Relative tolerance for a nodata value that is slightly above the largest float of its dtype.

Files often write the largest float with few digits, rounded up. Such a value is read as the largest float."""


def observed(planes: NDArray[Any], mask: NDArray[np.bool_] | None, nodata: float | None) -> NDArray[np.bool_] | None:
    """Return the mask of observed pixels, bool [height, width]. Return None if all pixels are observed.

    ``planes`` is [bands, height, width]. A pixel is not observed if any band is nodata, NaN or infinite, or if the mask
    [height, width] excludes the pixel.
    """
    if mask is None and not may_be_invalid(planes.dtype, nodata):
        return None
    value = None if nodata is None else as_pixels_have_it(nodata, planes.dtype)
    tested = value is not None and can_hold(planes.dtype, value)
    finite = planes.dtype.kind in "fc"
    valid = np.ones(planes.shape[1:], np.bool_) if mask is None else mask.copy()
    for band in planes:
        if tested:
            valid &= band != np.array(value).astype(band.dtype)
        if finite:
            valid &= np.isfinite(band)
    return None if valid.all() else valid


def may_be_invalid(dtype: np.dtype[Any], nodata: float | None) -> bool:
    """Return whether a pixel of ``dtype`` can be nodata, NaN or infinite."""
    return dtype.kind in "fc" or (nodata is not None and can_hold(dtype, as_pixels_have_it(nodata, dtype)))


def parse_nodata(text: str, dtype: DTypeLike) -> float | None:
    """Parse the text of a GDAL_NODATA tag. Return None if it is not a number or pixels of ``dtype`` cannot hold it."""
    text = text.strip(" \0")
    pixels = np.dtype(dtype)
    try:
        value = int(text) if pixels.kind in "iu" and re.fullmatch(r"[+-]?\d{1,20}", text) else float(text)
    except ValueError:
        return None
    if pixels.kind in "iu":
        return int(value) if _is_integer_of(value, pixels) else None
    if not math.isfinite(value) or pixels.kind != "f":
        return value
    value = as_pixels_have_it(value, pixels)
    return float(np.array(value).astype(pixels)) if can_hold(pixels, value) else None  # rounded as GDAL does


def format_nodata(value: float, dtype: DTypeLike) -> str:
    """Format nodata as the text of a GDAL_NODATA tag, or raise SaveError if pixels of ``dtype`` cannot hold it."""
    pixels = np.dtype(dtype)
    if pixels.kind in "iu":
        if not _is_integer_of(value, pixels):
            limits = np.iinfo(pixels)
            raise SaveError(f"nodata must be an integer from {limits.min} to {limits.max} for {pixels}, got {value}")
        return str(int(value))
    limit, value = _largest(pixels), as_pixels_have_it(value, pixels)
    if math.isfinite(value) and abs(value) > limit:
        raise SaveError(f"nodata must be within {-limit} and {limit} for {pixels}, or NaN, got {value}")
    return repr(float(value))


def as_pixels_have_it(value: float, dtype: DTypeLike) -> float:
    """Return ``value``, corrected if it is just above the largest float of pixels of ``dtype``.

    The corrected value is the largest float, or the lowest float for a negative value. Many files write the lowest
    float32 as ``-3.4028235e38``, which is slightly too low. GDAL makes the same correction.
    """
    pixels = np.dtype(dtype)
    if pixels.kind not in "fc" or not math.isfinite(value):
        return value
    limit = _largest(pixels)
    is_limit = limit < abs(value) and math.isclose(abs(value), limit, rel_tol=_FEWER_DIGITS)
    return math.copysign(limit, value) if is_limit else value


def can_hold(dtype: DTypeLike, value: float) -> bool:
    """Return whether a pixel of ``dtype`` can equal ``value``. NaN equals no pixel."""
    pixels = np.dtype(dtype)
    if pixels.kind in "iu":
        return _is_integer_of(value, pixels)
    return not math.isnan(value) and (math.isinf(value) or abs(value) <= _largest(pixels))


def _is_integer_of(value: float, pixels: np.dtype[Any]) -> bool:
    limits = np.iinfo(pixels)
    return math.isfinite(value) and limits.min <= value <= limits.max and value == int(value)


def _largest(pixels: np.dtype[Any]) -> float:
    return float(np.finfo(pixels).max)
