"""Reading a picture or a raster that fits into memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

from vllm_mmout.raster.opened import open_raster

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_mmout.raster.raster import Raster


def read_raster(source: str | Path | bytes | BinaryIO) -> Raster:
    """Read a whole raster: TIFF with what GeoTIFF and GDAL add to it, or a picture (PNG, JPEG, WebP, ...).

    Of a TIFF with several images the first is read, as GDAL does; a picture gives the bands of its mode (a palette its
    colours) and its first frame, in the orientation in which it is stored.

    Args:
        source: path of a file, its bytes, or a file open for reading bytes.

    Returns:
        The pixels [bands, height, width] in the dtype of the file, and what the file says about them.

    Raises:
        InputError: the file is missing, a folder, empty, no image, truncated, or of an encoding that cannot be read.

    """
    with open_raster(source) as opened:
        return opened.read()
