"""Overviews and statistics as GDAL makes them, through rasterio."""

from __future__ import annotations

import numpy as np
import rasterio
from rasterio.enums import Resampling
from rasterio.io import MemoryFile

ONE_CHUNK = {"GDAL_OVR_CHUNK_MAX_SIZE": "100000000"}
"""GDAL computes overviews in chunks; where a side is odd, what lies at a border of chunks depends on their size."""


def by_gdal(array: np.ndarray, nodata: float | None, resampling: Resampling) -> list[np.ndarray]:
    """All overviews of an array [bands, height, width], each made of the one before.

    That is how GDAL's COG driver makes them, and `gdaladdo` those of wide rasters; for others it takes the nearest of
    the full resolution, which differs where a side is odd.
    """
    found = []
    while max(array.shape[1:]) > 512:
        with MemoryFile() as memory:
            written(memory, array, nodata).close()
            with rasterio.Env(**ONE_CHUNK), rasterio.open(memory.name, "r+") as file:
                file.build_overviews([2], resampling)
            with memory.open(OVERVIEW_LEVEL=0) as file:
                found.append(file.read())
        array = found[-1].astype(array.dtype)  # GDAL reads float16 as float32
    return found


def written(
    memory: MemoryFile, array: np.ndarray, nodata: float | None, **options: object
) -> rasterio.io.DatasetWriter:
    """A GeoTIFF of the array, open for more."""
    half = array.dtype == np.float16
    bands, height, width = array.shape
    file = memory.open(
        driver="GTiff", count=bands, height=height, width=width, dtype="float32" if half else array.dtype,
        nodata=nodata, tiled=True, blockxsize=512, blockysize=512, compress="deflate", interleave="band", BIGTIFF="NO",
        **({"nbits": 16} if half else {}), **options,
    )  # fmt: skip
    file.write(array.astype("float32") if half else array)
    return file


def overviews_of(path: object) -> list[np.ndarray]:
    """All overviews that a file has, as rasterio reads them."""
    with rasterio.open(path) as file:
        number = len(file.overviews(1))
    found = []
    for level in range(number):
        with rasterio.open(path, OVERVIEW_LEVEL=level) as file:
            found.append(file.read())
    return found
