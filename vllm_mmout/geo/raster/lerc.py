"""LERC in TIFF, with the masks in which it keeps what is NaN and what alpha says.

LERC has no NaN: libtiff stores where they were as a mask, one for all bands or one a band, and an alpha band of 0 and
255 of interleaved uint8 as a mask too (libtiff's tif_lerc.c). tifffile passes over the masks.
"""

from __future__ import annotations

import zlib
from typing import Any

import imagecodecs
import numpy as np
from numpy.typing import NDArray

_DEFLATE, _ZSTANDARD = b"\x78", b"\x28\xb5\x2f\xfd"
"""What each begins with."""


def unwrapped(data: bytes, most: int) -> bytes:
    """LERC without the deflate or Zstandard that may be around it."""
    if data.startswith(_ZSTANDARD):
        return bytes(imagecodecs.zstd_decode(data, out=most))
    if not data.startswith(_DEFLATE):
        return data
    plain = zlib.decompressobj().decompress(data, most + 1)
    if len(plain) > most:
        raise ValueError(f"it has more than {most} bytes without deflate")
    return plain


def decode_lerc(data: bytes, samples: int, *, swapped: bool) -> NDArray[Any]:
    """The pixels [rows, columns, samples] of a strip or tile."""
    pixels, mask = imagecodecs.lerc_decode(data, masks=True)
    if mask is not None and mask.ndim == 3:  # bands that are NaN in different places are stored one after the other
        pixels, mask = np.moveaxis(pixels, 0, 2), np.moveaxis(mask, 0, 2)
    elif pixels.ndim == 2:
        pixels = pixels[:, :, np.newaxis]
    if swapped:  # libtiff swaps numbers before it encodes
        pixels = pixels.byteswap()
    if mask is not None and pixels.dtype.kind == "f":
        pixels[~mask] = np.nan
    if pixels.dtype == np.uint8 and pixels.shape[2] == samples - 1:
        alpha = np.full(pixels.shape[:2], 255, np.uint8) if mask is None else mask * np.uint8(255)
        pixels = np.dstack([pixels, alpha])
    return np.asarray(pixels)
