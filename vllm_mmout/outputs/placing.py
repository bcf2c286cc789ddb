"""Laying a result on the input it was made from: masking and metadata."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from vllm_mmout.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

_NOT_OF_THE_RESULT = frozenset(
    {"TIFFTAG_SOFTWARE", "TIFFTAG_IMAGEDESCRIPTION", "TIFFTAG_DOCUMENTNAME", "TIFFTAG_HOSTCOMPUTER"}
)
"""Items that speak of the input's file, not of what was observed."""


def masked(array: NDArray[Any], nodata: float | None, valid: NDArray[np.bool_]) -> tuple[NDArray[Any], float | None]:
    """Set pixels to nodata where nothing was observed.

    Args:
        array: [bands, height, width].
        nodata: value for such pixels, None to find one that no pixel has.
        valid: bool [height, width].

    Returns:
        A new array (the same where every pixel is valid), and its nodata.

    Raises:
        InputError: no value is free.

    """
    if valid.all():
        return array, nodata
    pixels = array.astype(np.uint8) if array.dtype == np.bool_ else array.copy()
    value = _free_value(pixels) if nodata is None else nodata
    pixels[:, ~valid] = value
    return pixels, value


def resized_mask(valid: NDArray[np.bool_], size: tuple[int, int]) -> NDArray[np.bool_]:
    """A mask of the same extent in another number of pixels: each takes the old pixel that its centre lies in.

    Args:
        valid: bool [height, width].
        size: the new height and width.

    Returns:
        bool of ``size``; ``valid`` itself if it has that size.

    """
    if valid.shape == size:
        return valid
    rows, cols = (_nearest(old, new) for old, new in zip(valid.shape, size, strict=True))
    return valid[rows[:, np.newaxis], cols]


def merged(source: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The items of the input that hold for the result as well, under those of the result."""
    return {**{name: text for name, text in source.items() if name not in _NOT_OF_THE_RESULT}, **own}


def _nearest(old: int, new: int) -> NDArray[np.intp]:
    """For each of ``new`` pixels along an axis the one of ``old`` that its centre lies in, in exact arithmetic."""
    return (2 * np.arange(new) + 1) * old // (2 * new)


def _free_value(pixels: NDArray[Any]) -> float:
    """A value that can mean nodata: NaN, or the largest integer if no pixel has it."""
    if pixels.dtype.kind == "f":
        return math.nan
    largest = int(np.iinfo(pixels.dtype).max)
    if (pixels == largest).any():
        raise InputError(
            f"the result is {pixels.dtype}, has no nodata, and uses {largest}, which would mean it;"
            " give the output a nodata of its own"
        )
    return largest
