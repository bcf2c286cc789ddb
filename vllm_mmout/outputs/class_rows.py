"""Read rasters of classes in blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError
from vllm_mmout.geo import Window

if TYPE_CHECKING:
    from vllm_mmout.geo import Georeference

_ROWS = 512
"""Number of rows of a class raster that are read at a time. Blocks of stored rasters have the same height."""


class ClassRaster(Protocol):
    """Interface of a raster whose pixels are class ids, and that can be read window by window."""

    nodata: float | None
    georeference: Georeference | None
    class_names: tuple[str, ...] | None

    @property
    def count(self) -> int:
        """Number of bands."""

    @property
    def height(self) -> int:
        """Number of rows."""

    @property
    def width(self) -> int:
        """Number of columns."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the pixels."""

    def read(self, window: Window) -> NDArray[Any]:
        """Return the pixels [bands, height, width] of a window."""


def check_classes(raster: ClassRaster) -> None:
    """Raise InputError unless a raster can hold classes: it must have a single band of dtype uint8 or uint16."""
    if raster.count != 1 or raster.dtype.name not in ("uint8", "uint16"):
        raise InputError(
            "polygons and areas are made of one band of classes, uint8 or uint16; got"
            f" {raster.count} of {raster.dtype}; ask for another output"
        )


def class_rows(raster: ClassRaster, window: Window | None = None) -> Iterator[NDArray[np.unsignedinteger]]:
    """Yield a class raster, or a window of it, in blocks of rows [rows, width], from top to bottom."""
    row, col, height, width = window or Window(0, 0, raster.height, raster.width)
    end = row + height
    while row < end:
        stop = min((row // _ROWS + 1) * _ROWS, end)
        yield raster.read(Window(row, col, stop - row, width))[0]
        row = stop
