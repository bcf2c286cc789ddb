"""Decode the common TIFF compressions (none, deflate, Zstandard, LZW) fast, with or without a predictor.

tifffile decodes each segment into new memory. This decoder writes into memory that is used again, which saves the page
faults. LZW and the predictor of floats are decoded by libtiff, which takes half the time of the codecs that tifffile
uses. Everything else, and every segment of an unexpected size, is left to tifffile.
"""

from __future__ import annotations

import math
import struct
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import imagecodecs
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import tifffile

    from vllm_mmout.geo.raster.scratch import Scratch

_NONE, _LZW = 1, 5
_DECODE: dict[int, Any] = {
    _LZW: None,
    8: imagecodecs.deflate_decode,
    32946: imagecodecs.deflate_decode,
    50000: imagecodecs.zstd_decode,
}
"""Maps the number of a TIFF compression to its decoder. None means that libtiff decodes."""
_DIFFERENCES, _FLOAT_DIFFERENCES = 2, 3
"""Numbers of two TIFF predictors: differences of integers, and differences of the bytes of floats."""
_PREDICTORS = {(1, "i"), (1, "u"), (1, "f"), (_DIFFERENCES, "i"), (_DIFFERENCES, "u"), (_FLOAT_DIFFERENCES, "f")}
"""Supported pairs of a TIFF predictor (1 means none) and NumPy's ``dtype.kind``."""
_IN_ORDER, _FLOAT, _UNSIGNED = 1, 3, 1


@dataclass(frozen=True, slots=True)
class PlainDecoder:
    """Decoder of the strips or tiles of one TIFF image."""

    dtype: np.dtype[Any]
    compression: int
    predictor: int

    def __call__(self, data: memoryview, shape: tuple[int, int, int], scratch: Scratch) -> NDArray[Any] | None:
        """Decode a strip or tile to pixels of ``shape``. Return None if its data is damaged or of the wrong size.

        The result may be a view of ``data`` or of ``scratch``.
        """
        number = math.prod(shape)
        nbytes = number * self.dtype.itemsize
        if self.compression == _NONE:
            return np.frombuffer(data, self.dtype, number).reshape(shape) if len(data) >= nbytes else None
        buffer = scratch.take("decoded", nbytes)
        pixels: NDArray[Any] = buffer.view(self.dtype).reshape(shape)
        decode = _DECODE[self.compression]
        try:
            if self.predictor == _FLOAT_DIFFERENCES:
                _decode_by_libtiff(data, pixels, self.compression, self.predictor, scratch)
            elif decode is None:
                _decode_by_libtiff(data, buffer.reshape(shape[0], -1, 1), self.compression, 1, scratch)
            elif len(decode(data, out=buffer)) < nbytes:
                return None
        except RuntimeError:  # the root of the errors of imagecodecs
            return None
        if self.predictor == _DIFFERENCES:
            imagecodecs.delta_decode(pixels, axis=-2, out=pixels)
        return pixels


def plain_decoder(page: tifffile.TiffPage, dtype: np.dtype[Any]) -> PlainDecoder | None:
    """Return a fast decoder for a TIFF page with pixels of ``dtype``, or None if only tifffile can decode the page."""
    compression, predictor = int(page.compression), int(page.predictor)
    formats = page.sampleformat if isinstance(page.sampleformat, tuple) else (page.sampleformat,)
    native = page.parent.byteorder == ("<" if sys.byteorder == "little" else ">")
    plain = native and page.bitspersample == 8 * dtype.itemsize and page.fillorder == _IN_ORDER
    if not plain or len(set(formats)) > 1 or page.is_subsampled or (predictor, dtype.kind) not in _PREDICTORS:
        return None
    if compression in _DECODE or (compression == _NONE and predictor == 1):
        return PlainDecoder(dtype, compression, predictor)
    return None


def _decode_by_libtiff(
    data: memoryview, pixels: NDArray[Any], compression: int, predictor: int, scratch: Scratch
) -> None:
    """Decode a strip or tile with libtiff into the array ``pixels`` [rows, columns, bands].

    libtiff reads the strip or tile from a small TIFF file that is built in memory.

    Raises:
        RuntimeError: the data is damaged or too short.

    """
    rows, columns, bands = pixels.shape
    tags = {
        256: columns,
        257: rows,
        258: 8 * pixels.itemsize,
        259: compression,
        262: 1,  # dark to bright
        273: 0,
        277: bands,
        278: rows,
        279: len(data),
        284: 1,  # bands side by side
        317: predictor,
        339: _FLOAT if pixels.dtype.kind == "f" else _UNSIGNED,
    }
    tags[273] = start = 8 + 2 + 12 * len(tags) + 4
    header = struct.pack("=2sHIH", b"II" if sys.byteorder == "little" else b"MM", 42, 8, len(tags))
    header += b"".join(_entry(code, value) for code, value in tags.items()) + bytes(4)
    file: Any = scratch.take("file", start + len(data))
    file[:start] = np.frombuffer(header, np.uint8)
    file[start:] = np.frombuffer(data, np.uint8)
    imagecodecs.tiff_decode(file, out=pixels if bands > 1 else pixels[:, :, 0])


def _entry(code: int, value: int) -> bytes:
    """Return an entry of a TIFF directory with one number, of 16 bits if the value fits, else of 32 bits."""
    return struct.pack("=HHIHH", code, 3, 1, value, 0) if value < 2**16 else struct.pack("=HHII", code, 4, 1, value)
