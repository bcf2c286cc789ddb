"""Scenes for tests, written by rasterio, and what the embedded model must make of them, in plain numpy."""

from __future__ import annotations

import numpy as np
import water_oracle

from vllm_mmout import OutputParams

TILE = 32
"""Pixels of a tile: small, so that a small scene has many."""


def pixels(seed=0, height=75, width=90):
    """uint16 [6, height, width], of which each pixel has a class of its own: a shift by one shows."""
    return water_oracle.scene(seed, height, width)


def with_a_hole():
    """uint16 [6, 300, 400], 0 in rows 50 to 90 and columns 100 to 130, where nothing was observed."""
    found = pixels(7, 300, 400)
    found[:, 50:90, 100:130] = 0
    return found


def classes(array, valid=None):
    """uint8 [1, height, width]: the class of each pixel, 255 where it is not valid."""
    found = water_oracle.logits(array).argmax(axis=0).astype(np.uint8)
    return (found if valid is None else np.where(valid, found, np.uint8(255)))[np.newaxis]


def probabilities(array):
    """float64 [2, height, width]: the softmax of the logits."""
    powers = np.exp(water_oracle.logits(array).astype(np.float64))
    return powers / powers.sum(axis=0)


def write(path, array, *, tags=None, rpcs=None, descriptions=(), **profile):
    """Write a GeoTIFF with rasterio."""
    import rasterio

    bands, height, width = array.shape
    shape = {"count": bands, "height": height, "width": width, "dtype": array.dtype.name}
    with rasterio.open(path, "w", driver="GTiff", **shape, **profile) as file:
        file.write(array)
        file.update_tags(**(tags or {}))
        if rpcs is not None:
            file.rpcs = rpcs
        if descriptions:
            file.descriptions = descriptions
    return path


def generate(llm, data, **options):
    """The one result of one scene, in tiles of `TILE` pixels if not told otherwise."""
    (result,) = llm.generate(data, OutputParams(**{"tile": TILE, **options}), use_tqdm=False)
    return result.outputs


def counted(size, tile=TILE, overlap=0):
    """How many tiles an axis of so many pixels takes."""
    return 1 if size <= tile else -(-(size - overlap) // (tile - overlap))
