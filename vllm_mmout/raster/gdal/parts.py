"""Parts of a raster of GDAL's: each some whole blocks of it, read and decoded one by one."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from vllm_mmout.errors import InputError
from vllm_mmout.raster.window import Window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from vllm_mmout.raster.gdal.datasets import Datasets
    from vllm_mmout.raster.segments import Place

_Stored: TypeAlias = bytes
_LARGEST = 512 << 20
"""Bytes of a part, decoded, above which it is refused: it has to be in memory as a whole."""
_WORTH_A_CALL = 2**18
"""Bytes, decoded, that are worth a call of GDAL."""
_SIDE = 1024
"""Pixels that a part of a VRT may have either way."""
_WORTH_A_SEARCH = 32 << 20
"""Bytes, decoded, up to which a part of a VRT grows."""


def part_size(driver: str, block: tuple[int, int], size: tuple[int, int], pixel: int) -> tuple[int, int]:
    """Height and width of the parts in which to read a raster.

    They are GDAL's blocks; several rows of them where a block is small, as of formats that are decoded row by row. Of a
    VRT they are larger: its blocks say nothing of those of its sources, each of which is decoded for every part that
    has some of it.

    Args:
        driver: name of the driver.
        block: height and width of GDAL's blocks.
        size: height and width of the raster.
        pixel: bytes of a pixel, all bands.

    """
    height, width = block
    if driver == "VRT":
        side = min(_SIDE, max(1, math.isqrt(_WORTH_A_SEARCH // pixel)))
        height *= max(1, side // height)
        width *= max(1, side // width)
    height *= max(1, _WORTH_A_CALL // (height * width * pixel))
    return min(height, size[0]), min(width, size[1])


class GdalParts:
    """The pixels of some bands, as parts that `read_windows` reads.

    Args:
        datasets: where they are read from.
        size: height and width of the raster.
        block: height and width of a part.
        bands: the bands to read, numbers from 1.
        dtype: what they are read as.
        decoded: [rows, columns] of parts, how often each was read; counted up.
        nbytes: what GDAL decodes for a part.

    Raises:
        InputError: a part is too large to be read.

    """

    planes = 1
    fill = 0.0

    def __init__(
        self,
        datasets: Datasets,
        size: tuple[int, int],
        block: tuple[int, int],
        bands: Sequence[int],
        *,
        dtype: np.dtype[Any],
        decoded: NDArray[np.int64],
        nbytes: int,
    ) -> None:
        self.block = block
        self.dtype = dtype
        self.grid: tuple[int, int] = decoded.shape
        self.bytes = math.prod(block) * len(bands) * dtype.itemsize
        self._datasets = datasets
        self._size = size
        self._bands = list(bands)
        self._decoded = decoded
        self._nbytes = nbytes
        self._counting = threading.Lock()
        if self.bytes > _LARGEST:
            raise InputError(
                f"{datasets.name} is stored in blocks of {block[0]} x {block[1]} pixels, {self.bytes >> 20} MiB decoded"
                f" for {len(bands)} bands, which must be in memory at once, {_LARGEST >> 20} MiB at most; choose fewer"
                " bands, or convert it to a tiled GeoTIFF"
            )

    def window(self, place: Place) -> Window:
        """Where a part lies."""
        row, col = place[1] * self.block[0], place[2] * self.block[1]
        return Window(row, col, min(self.block[0], self._size[0] - row), min(self.block[1], self._size[1] - col))

    def read(self, places: Sequence[Place]) -> Sequence[_Stored | None]:
        """Nothing yet: GDAL reads and decodes in one."""
        return [b""] * len(places)

    def decode(self, place: Place, data: _Stored) -> NDArray[Any]:
        """The pixels [rows, columns, bands] of a part.

        Raises:
            InputError: the file is damaged there.

        """
        with self._counting:
            self._decoded[place[1:]] += 1
        where = self.window(place)
        slices = ((where.row, where.row + where.height), (where.col, where.col + where.width))
        with self._datasets.dataset(self._nbytes) as dataset:
            return np.moveaxis(self._pixels(dataset, slices), 0, 2)

    def _pixels(self, dataset: Any, slices: tuple[tuple[int, int], tuple[int, int]]) -> NDArray[Any]:
        """The pixels [bands, rows, columns] of a window."""
        if len({dataset.dtypes[band - 1] for band in self._bands}) == 1:
            pixels: NDArray[Any] = dataset.read(self._bands, window=slices, out_dtype=self.dtype.name)
            return pixels
        # rasterio reads several bands at once only where they are of one dtype
        return np.stack([dataset.read(band, window=slices, out_dtype=self.dtype.name) for band in self._bands])


class GdalMasks(GdalParts):
    """Whether all of some bands are valid, as parts of one band, bool."""

    def _pixels(self, dataset: Any, slices: tuple[tuple[int, int], tuple[int, int]]) -> NDArray[Any]:
        valid: NDArray[np.bool_] = (dataset.read_masks(self._bands, window=slices) != 0).all(axis=0)
        return valid[np.newaxis]
