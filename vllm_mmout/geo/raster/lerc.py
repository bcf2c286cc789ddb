"""Decode LERC-compressed strips and tiles of a TIFF, including the masks that mark NaN and alpha.

LERC cannot store NaN, so libtiff stores the positions of NaN as a mask, one for all bands or one per band. An alpha
band of 0 and 255 in interleaved uint8 pixels is stored as a mask too (libtiff's tif_lerc.c). tifffile ignores the
masks.
"""

from __future__ import annotations

import zlib
from typing import Any

import imagecodecs
import numpy as np
from numpy.typing import NDArray

_DEFLATE, _ZSTANDARD = b"\x78", b"\x28\xb5\x2f\xfd"
"""First bytes of data compressed with deflate, and of data compressed with Zstandard."""


def unwrapped(data: bytes, max_bytes: int) -> bytes:
    """Return LERC data, decompressed first if it is wrapped in deflate or Zstandard compression.

    Fail if the decompressed data exceeds ``max_bytes``.
    """
    if data.startswith(_ZSTANDARD):
        return bytes(imagecodecs.zstd_decode(data, out=max_bytes))
    if not data.startswith(_DEFLATE):
        return data
    plain = zlib.decompressobj().decompress(data, max_bytes + 1)
    if len(plain) > max_bytes:
        raise ValueError(f"it has more than {max_bytes} bytes when decompressed")
    return plain


def decode_lerc(data: bytes, samples: int, *, swapped: bool) -> NDArray[Any]:
    """Decode a LERC strip or tile to pixels [rows, columns, samples].

    NaN values and an alpha band are restored from the mask in the LERC data. ``swapped`` means that the TIFF's byte
    order is not the machine's.
    """
    pixels, mask = imagecodecs.lerc_decode(data, masks=True)
    if mask is not None and mask.ndim == 3:  # stored band by band if NaN positions differ
        pixels, mask = np.moveaxis(pixels, 0, 2), np.moveaxis(mask, 0, 2)
    elif pixels.ndim == 2:
        pixels = pixels[:, :, np.newaxis]
    if swapped:  # libtiff swaps the bytes before it encodes
        pixels = pixels.byteswap()
    if mask is not None and pixels.dtype.kind == "f":
        pixels[~mask] = np.nan
    if pixels.dtype == np.uint8 and pixels.shape[2] == samples - 1:
        alpha = np.full(pixels.shape[:2], 255, np.uint8) if mask is None else mask * np.uint8(255)
        pixels = np.dstack([pixels, alpha])
    return np.asarray(pixels)
