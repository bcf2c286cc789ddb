"""Polygons as shapely has them, of what the tracer gives, and of what rasterio gives for the same classes."""

from __future__ import annotations

import numpy as np
from shapely.geometry import Polygon, shape

from vllm_mmout.geo.vectors.polygon import without_flags
from vllm_mmout.geo.vectors.trace import trace_polygons


def traced(classes, **options):
    """(polygon in columns and rows, class, pixels, area) of each region; below 0 there is none."""
    found, rings = [], []
    for some in trace_polygons([classes], classes.shape, **options):
        parts = iter(np.split(without_flags(some.vertices), np.cumsum(some.counts)[:-1]))
        facts = zip(some.classes.tolist(), some.pixels.tolist(), some.areas.tolist(), some.rings.tolist(), strict=True)
        for place, (number, pixels, area, count) in enumerate(facts, start=1):
            rings += [next(parts) for _ in range(count)]
            if place == len(some.rings) and some.continues:
                break
            found.append((Polygon(rings[0], rings[1:]), number, pixels, area))
            rings = []
    assert not rings
    return found


def by_rasterio(classes):
    """The same polygons by GDAL, with their classes."""
    from rasterio.features import shapes

    found = shapes(classes.astype(np.int32), mask=classes >= 0, connectivity=4)
    return [(shape(geometry), int(value)) for geometry, value in found]


def rasterised(pairs, size):
    """int32 of ``size``: the class of each pixel whose centre lies in a polygon, by GDAL, else -1."""
    from rasterio.features import rasterize

    if not pairs:
        return np.full(size, -1, np.int32)
    return rasterize(pairs, out_shape=size, fill=-1, dtype="int32")


def blobs(size, grain, seed=0, levels=(0.7, 1.0, 1.4)):
    """int32 [size, size]: smooth islands of several classes in a background of 0, some ``grain`` pixels wide."""
    from PIL import Image

    random = np.random.default_rng(seed).standard_normal((size // grain + 3,) * 2).astype(np.float32)
    relief = np.array(Image.fromarray(random).resize((size, size), Image.Resampling.BICUBIC))
    return np.digitize(relief, levels).astype(np.int32)
