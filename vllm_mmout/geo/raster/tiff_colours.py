"""Convert TIFF colour spaces and palettes to RGB (TIFF 6.0, sections 3, 5, 16, 21 and 23)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import Image

from vllm_mmout.errors import InputError

_KINDS: Final = tifffile.PHOTOMETRIC
_JPEG_COMPRESSIONS: Final = frozenset({6, 7, 33007, 34892})
"""TIFF compression codes whose decoders already convert YCbCr to RGB."""
_SIGNED: Final = np.array([0, 0x80, 0x80], np.uint8)
"""XOR mask that converts ICCLab pixels to the Lab pixels that Pillow expects.

Pillow expects the channels a and b as signed bytes. ICCLab stores them as unsigned bytes, with 128 added."""
_CMYK: Final = 1
"""Value of the TIFF tag InkSet for cyan, magenta, yellow and black."""
InRgb: TypeAlias = Callable[[NDArray[np.uint8]], NDArray[np.uint8]]
"""Function that converts pixels to RGB. Input and result are uint8 [rows, columns, 3]."""


def left_to_gdal(page: tifffile.TiffPage) -> str:
    """Return "YCbCr" or "CMYK" if the image needs GDAL for the conversion to RGB, else ""."""
    if page.photometric == _KINDS.YCBCR and int(page.compression) not in _JPEG_COMPRESSIONS:
        return "YCbCr"
    ink_set = page.tags.valueof(332, default=_CMYK)
    of_bytes = page.dtype == np.uint8
    return "CMYK" if page.photometric == _KINDS.SEPARATED and ink_set == _CMYK and of_bytes else ""


def lab_in_rgb(page: tifffile.TiffPage, name: str) -> InRgb | None:
    """Return a function that converts the pixels of a Lab image to RGB, or None if the image is not Lab.

    The function uses Pillow, since GDAL's conversion is coarse.

    Raises:
        InputError: the Lab image is stored plane by plane, is not uint8, or has more than three bands.

    """
    if page.photometric not in (_KINDS.CIELAB, _KINDS.ICCLAB, _KINDS.ITULAB):
        return None
    plain = page.dtype == np.uint8 and page.axes == "YXS" and page.samplesperpixel == len("Lab")
    if not plain or page.photometric == _KINDS.ITULAB:
        raise InputError(
            f"{name} has pixels in {_KINDS(page.photometric).name} ({page.dtype}, axes {page.axes}), but only 8-bit"
            " CIELab and ICCLab with interleaved bands can be read; convert it to RGB, for example with ImageMagick's"
            " magick in.tif -colorspace sRGB out.tif"
        )
    flipped = _SIGNED if page.photometric == _KINDS.ICCLAB else np.zeros(3, np.uint8)

    def in_rgb(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        height, width, _ = pixels.shape
        lab = Image.frombytes("LAB", (width, height), (pixels ^ flipped).tobytes())
        return np.asarray(lab.convert("RGB"))

    return in_rgb


def palette_of(page: tifffile.TiffPage) -> NDArray[np.uint8] | None:
    """Return the table of display colours for the pixel values of a TIFF, or None if the values need no such table.

    The colours are uint8 [values, 3], or uint8 [values, 1] for grey, and equal the colours that Pillow shows. Grey
    tables are for pixels of less than 8 bits, and for pixels of up to 8 bits with 0 as white.
    """
    bits = page.bitspersample
    if not isinstance(bits, int) or bits > 16 or page.dtype is None or np.dtype(page.dtype).kind not in "bu":
        return None
    if page.photometric == _KINDS.PALETTE and page.colormap is not None:
        return np.ascontiguousarray((np.asarray(page.colormap) >> 8).astype(np.uint8).T)
    inverted = page.photometric == _KINDS.MINISWHITE
    if bits > 8 or not (inverted or (bits < 8 and page.photometric == _KINDS.MINISBLACK)):
        return None
    grey = np.linspace(0, 255, 1 << bits).round().astype(np.uint8)[:, np.newaxis]
    return grey[::-1].copy() if inverted else grey


def colours_of_palette(palette: Mapping[int, tuple[int, ...]]) -> NDArray[np.uint8]:
    """Convert GDAL's colour table {value: (red, green, blue, alpha)} to an array, uint8 [values, 3], without alpha.

    Values without an entry get black.
    """
    colours = np.zeros((1 << (8 if max(palette, default=0) < 256 else 16), 3), np.uint8)
    for value, colour in palette.items():
        colours[value] = colour[:3]
    return colours
