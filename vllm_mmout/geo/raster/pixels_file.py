"""Class `PixelsFile`: temporary GeoTIFF of a raster's pixels, from which GDAL makes a cloud-optimised GeoTIFF."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.geo.raster.band_statistics import file_statistics
from vllm_mmout.geo.raster.gdal_writing import IN_MEMORY, gdal_writes, system_error
from vllm_mmout.geo.raster.geotiff import (
    RasterMetadata,
    block_side,
    cog_options,
    is_whole,
    restore_names,
    source_xml,
    stored_dtype,
)

_CACHE = 64 << 20
"""Size of GDAL's block cache in bytes while a COG is written. GDAL's default is 5 % of the machine's memory."""
_CACHES: list[int] = []
"""Sizes of GDAL's block cache in bytes, with one entry for each COG that is being written. The first entry is the
original size, which is restored when the last COG is done."""
_CACHING = threading.Lock()


class PixelsFile:
    """Temporary GeoTIFF, on disk or in memory, that holds a raster's pixels until a COG is made from them.

    One thread at a time may use it.
    """

    def __init__(self, name: str, shape: tuple[int, int, int], dtype: np.dtype[Any]) -> None:
        """Create the temporary file ``name`` for a raster of ``shape`` (bands, height, width).

        ``dtype`` is the dtype of the pixels before `stored_dtype`.
        """
        import rasterio

        self.shape = shape
        self._name = name
        self._given, self._dtype = dtype, stored_dtype(dtype)
        dtype = self._dtype
        self._kept = np.dtype(np.float32) if dtype == np.float16 else dtype
        side, (count, height, width) = block_side(shape), shape
        compression = {} if dtype.kind == "f" else {"compress": "zstd", "zstd_level": 1}  # floats hardly compress
        with gdal_writes(name):
            self._file = rasterio.open(
                name, "w", driver="GTiff", count=count, height=height, width=width, dtype=self._kept, tiled=True,
                blockxsize=side, blockysize=side, interleave="band", bigtiff="IF_SAFER", **compression,
                transform=rasterio.Affine.scale(2),  # rasterio warns without a transform
            )  # fmt: skip

    def write(self, row: int, col: int, pixels: NDArray[Any]) -> None:
        """Write pixels [bands, height, width] whose upper left pixel is at ``row`` and ``col`` of the raster."""
        window = ((row, row + pixels.shape[1]), (col, col + pixels.shape[2]))
        with gdal_writes(self._name, pixels.nbytes):
            self._file.write(pixels.astype(self._kept, copy=False), window=window)

    def save(self, target: str, metadata: RasterMetadata) -> None:
        """Convert the temporary file to a cloud-optimised GeoTIFF (COG) with the path ``target``."""
        from rasterio.shutil import copy

        source_xml(self._name, self.shape, self._dtype, metadata)  # raises if the metadata does not fit
        on_disk = not target.startswith(IN_MEMORY)
        nbytes = 2 * Path(self._name).stat().st_size if on_disk else 0
        with gdal_writes(target, nbytes), _small_cache():
            self._file.close()
            of_bands = file_statistics(self._name, self._dtype, metadata.get("nodata"))
            xml = source_xml(self._name, self.shape, self._dtype, metadata, items_of_bands=of_bands)
            copy(xml, target, driver="COG", **cog_options(self.shape, self._given, metadata))
        if on_disk:
            if not is_whole(target):
                raise system_error(target, nbytes, OSError("the end of the file is missing"))
            restore_names(target, metadata)

    def close(self) -> None:
        """Finish and close the temporary file, but keep it on disk, so that GDAL can read it."""
        with gdal_writes(self._name):
            self._file.close()

    def discard(self) -> None:
        """Close the temporary file and delete it. May be called repeatedly."""
        self._file.close()
        if not self._name.startswith(IN_MEMORY):
            with suppress(OSError):
                Path(self._name).unlink(missing_ok=True)


@contextmanager
def _small_cache() -> Iterator[None]:
    """Reduce GDAL's block cache while any thread writes a COG, and restore its size when the last thread is done."""
    from rasterio.env import get_gdal_config, set_gdal_config

    with _CACHING:
        _CACHES.append(get_gdal_config("GDAL_CACHEMAX"))
        set_gdal_config("GDAL_CACHEMAX", min(_CACHES[0], _CACHE))
    try:
        yield
    finally:
        with _CACHING:
            before = _CACHES[0]
            _CACHES.pop()
            if not _CACHES:
                set_gdal_config("GDAL_CACHEMAX", before)
