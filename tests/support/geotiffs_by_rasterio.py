"""GeoTIFFs for tests, made by rasterio."""

from __future__ import annotations

import numpy as np
import rasterio
from rasterio.io import MemoryFile

ARRAY = np.random.default_rng(5).integers(0, 4000, (3, 96, 128)).astype("uint16")
TILED = {"tiled": True, "blockxsize": 32, "blockysize": 16, "compress": "deflate"}


def geotiff(array: np.ndarray = ARRAY, *, mask: np.ndarray | None = None, **options: object) -> bytes:
    """A GeoTIFF by rasterio."""
    bands, height, width = array.shape
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), MemoryFile() as memory:
        with memory.open(driver="GTiff", dtype=array.dtype, count=bands, height=height, width=width, **options) as file:
            file.write(array)
            if mask is not None:
                file.write_mask(mask)
        return bytes(memory.getbuffer())
