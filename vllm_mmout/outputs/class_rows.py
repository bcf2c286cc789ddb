"""Rasters of classes, read in bands of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_mmout.errors import InputError
from vllm_mmout.raster.window import Window

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from vllm_mmout.outputs.raster import RasterOutput

_ROWS = 512
"""Rows that are read at once: a row of blocks."""


def class_rows(raster: RasterOutput) -> Iterator[NDArray[np.unsignedinteger]]:
    """The classes from the top, [rows, width], some rows at a time."""
    for row in range(0, raster.height, _ROWS):
        yield raster.read(Window(row, 0, min(_ROWS, raster.height - row), raster.width))[0]


def check_classes(raster: RasterOutput) -> None:
    """Refuse a raster that is none of classes.

    Raises:
        InputError: it has several bands, or another dtype than uint8 and uint16.

    """
    if raster.count != 1 or raster.dtype.name not in ("uint8", "uint16"):
        raise InputError(
            "polygons and areas are made of one band of classes, uint8 or uint16; got"
            f" {raster.count} of {raster.dtype}; ask for another output"
        )
