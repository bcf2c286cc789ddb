"""Rasters on disk as they come out of scenes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vllm_mmout.geo import Georeference, are_classes
from vllm_mmout.geo.raster.writing import GeoTiffBlocks
from vllm_mmout.outputs.stored import StoredRaster

PLACE = Georeference(crs="EPSG:32614", transform=(30.0, 0.0, 440280.0, 0.0, -30.0, 3159720.0))
PALETTE = np.array([[10, 20, 30], [0, 0, 255], [200, 100, 0]], "uint8")
CLASSES = {
    "nodata": 255,
    "georeference": PLACE,
    "class_names": ["land", "water", "ice"],
    "palette": PALETTE,
    "band_names": ("classes",),
    "metadata": {"SENSOR": "MSI"},
}
"""What is known of a raster of three classes."""


def stored(array: np.ndarray, folder: Path, **known: object) -> StoredRaster:
    """The array on disk, as it comes out of a scene."""
    bands, height, width = array.shape
    classes = are_classes(array.dtype, known.get("class_names"), known.get("palette"))
    blocks = GeoTiffBlocks(folder, bands=bands, height=height, width=width, dtype=array.dtype, classes=classes)
    for row in range(0, height, 512):
        for col in range(0, width, 512):
            blocks.write(row // 512, col // 512, array[:, row : row + 512, col : col + 512])
    return StoredRaster.from_blocks(blocks, **known)
