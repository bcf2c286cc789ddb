"""Rasters for models of TerraTorch, by rasterio, and what such a model is given of them."""

from __future__ import annotations

import numpy as np
import rasterio
from affine import Affine

from vllm_mmout import OutputParams
from vllm_mmout.wings.terratorch.mapper import TerratorchMapper

NUMBERS = np.random.default_rng(7)
PLACE = Affine(10, 0, 700000, 0, -10, 4400000)


def written(path, *, bands=6, size=(64, 64), dtype="int16", **options):
    """A GeoTIFF by rasterio, of an ``array`` or of random numbers, and its pixels."""
    tags, descriptions = options.pop("tags", {}), options.pop("descriptions", None)
    array = options.pop("array", None)
    if array is None:
        array = NUMBERS.integers(1, 4000, (bands, *size)).astype(dtype)
    bands, size, dtype = len(array), array.shape[1:], array.dtype.name
    grid = {"crs": "EPSG:32630", "transform": PLACE, **options}
    shape = {"count": bands, "height": size[0], "width": size[1]}
    with rasterio.open(path, "w", driver="GTiff", dtype=dtype, **shape, **grid) as file:
        file.write(array)
        file.update_tags(**tags)
        if descriptions:
            file.descriptions = descriptions
    return array


def mapped(config, data, **options):
    """What the model is given."""
    params = OutputParams(**options)
    mapper = TerratorchMapper.from_config(config)
    with mapper.open(data, params) as view:
        return mapper.whole(view).tensors
