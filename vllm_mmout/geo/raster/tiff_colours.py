"""Colours of TIFFs (TIFF 6.0, sections 3, 5, 16, 21 and 23): what becomes RGB, and what values look like."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import Image

from vllm_mmout.errors import InputError

_KINDS: Final = tifffile.PHOTOMETRIC
_OF_JPEG: Final = frozenset({6, 7, 33007, 34892})
"""Compressions whose decoders give RGB for YCbCr."""
_SIGNED: Final = np.array([0, 0x80, 0x80], np.uint8)
"""What makes a and b of ICCLab, which count from 128, signed as those of CIELab and of Pillow's raw LAB are."""
_CMYK: Final = 1
"""The ink set of cyan, magenta, yellow and black."""
InRgb: TypeAlias = Callable[[NDArray[np.uint8]], NDArray[np.uint8]]
"""Brings pixels [rows, columns, 3] to RGB."""


def left_to_gdal(page: tifffile.TiffPage) -> str:
    """Return the colour space of an image that GDAL brings to RGB, in words; "" for any other image."""
    if page.photometric == _KINDS.YCBCR and int(page.compression) not in _OF_JPEG:
        return "YCbCr"
    ink_set = page.tags.valueof(332, default=_CMYK)
    of_bytes = page.dtype == np.uint8
    return "CMYK" if page.photometric == _KINDS.SEPARATED and ink_set == _CMYK and of_bytes else ""


def lab_in_rgb(page: tifffile.TiffPage, name: str) -> InRgb | None:
    """Return what brings the pixels of a Lab image to RGB as Pillow does it, whose GDAL's are coarse; None of others.

    Raises:
        InputError: Lab that is stored plane by plane, in other numbers than bytes, or with further bands.

    """
    if page.photometric not in (_KINDS.CIELAB, _KINDS.ICCLAB, _KINDS.ITULAB):
        return None
    plain = page.dtype == np.uint8 and page.axes == "YXS" and page.samplesperpixel == len("Lab")
    if not plain or page.photometric == _KINDS.ITULAB:
        raise InputError(
            f"{name} has pixels in {_KINDS(page.photometric).name} ({page.dtype}, axes {page.axes}), whose colours are"
            " read here of CIELab and ICCLab of 8 bits alone; convert it to RGB, as with ImageMagick's magick in.tif"
            " -colorspace sRGB out.tif"
        )
    flipped = _SIGNED if page.photometric == _KINDS.ICCLAB else np.zeros(3, np.uint8)

    def in_rgb(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        height, width, _ = pixels.shape
        lab = Image.frombytes("LAB", (width, height), (pixels ^ flipped).tobytes())
        return np.asarray(lab.convert("RGB"))

    return in_rgb


def palette_of(page: tifffile.TiffPage) -> NDArray[np.uint8] | None:
    """Return what the values of an image look like (`OpenRaster.palette`), as Pillow shows them."""
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
    """Return the colours [values, 3] of a palette of GDAL, red, green, blue and alpha of each value; 0 of others."""
    colours = np.zeros((1 << (8 if max(palette, default=0) < 256 else 16), 3), np.uint8)
    for value, colour in palette.items():
        colours[value] = colour[:3]
    return colours
