"""Overviews as GDAL's COG driver makes them of a plain file, through rasterio."""

from __future__ import annotations

import numpy as np
import rasterio
from rasterio.enums import Resampling
from rasterio.io import MemoryFile
from rasterio.shutil import copy


def by_gdal(array: np.ndarray, nodata: float | None, resampling: Resampling) -> list[np.ndarray]:
    """All overviews of an array [bands, height, width]."""
    with MemoryFile() as memory, MemoryFile() as cog:
        written(memory, array, nodata).close()
        half = {"NBITS": "16"} if array.dtype == np.float16 and len(array) == 1 else {}
        copy(memory.name, cog.name, driver="COG", overview_resampling=resampling.name, **half)
        return overviews_of(cog.name)


def written(
    memory: MemoryFile, array: np.ndarray, nodata: float | None, **options: object
) -> rasterio.io.DatasetWriter:
    """A GeoTIFF of the array, open for more."""
    half = array.dtype == np.float16
    kept = "float32" if half else array.dtype
    bands, height, width = array.shape
    file = memory.open(
        driver="GTiff", count=bands, height=height, width=width, dtype=kept,
        nodata=nodata, tiled=True, blockxsize=512, blockysize=512, compress="deflate", interleave="band", BIGTIFF="NO",
        **({"nbits": 16} if half and bands == 1 else {}), **options,
    )  # fmt: skip
    file.write(array.astype(kept))
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
