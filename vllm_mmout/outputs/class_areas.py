"""Measure the area of each class of a raster, and of its nodata pixels, by counting pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from vllm_mmout.geo import pixel_areas
from vllm_mmout.outputs.class_rows import check_classes, class_rows

if TYPE_CHECKING:
    from vllm_mmout.outputs.class_rows import ClassRaster

_CHUNK_PIXELS = 2**20
"""Maximum number of pixels counted at a time. This limits NumPy's temporary int64 copy of the pixels to 8 MiB."""


class ClassArea(BaseModel):
    """Area that one class covers in a raster."""

    id: int
    """Index of the class in the model, from 0."""
    name: str | None
    """Name of the class, or None."""
    pixels: int
    """Number of pixels of the class."""
    share: float
    """Fraction of the classified pixels that belong to this class, from 0 to 1."""
    area_m2: float | None
    """Area in square metres, or None if the area cannot be computed from the raster's georeference."""


class NodataArea(BaseModel):
    """Area of the nodata pixels of a raster, such as masked clouds."""

    pixels: int
    """Number of nodata pixels."""
    area_m2: float | None
    """Area in square metres, or None if the area cannot be computed from the raster's georeference."""


def count_areas(raster: ClassRaster) -> tuple[list[ClassArea], NodataArea]:
    """Measure the area of each class in a raster, and the area of the nodata pixels, in a single pass.

    Raise InputError unless the raster is a single band of uint8 or uint16.
    """
    check_classes(raster)
    areas = pixel_areas(raster.georeference, raster.height)
    even = areas is None or bool((areas == areas[0]).all())
    step = max(1, _CHUNK_PIXELS // raster.width) if even else 1
    counts = np.zeros(np.iinfo(raster.dtype).max + 1, np.int64)
    sums = np.zeros(len(counts))
    row = 0
    for rows in class_rows(raster):
        for start in range(0, len(rows), step):
            part = np.bincount(rows[start : start + step].ravel())
            counts[: len(part)] += part
            if areas is not None and not even:
                sums[: len(part)] += part * areas[row + start]
        row += len(rows)
    if areas is not None and even:
        sums = counts * areas[0]
    return class_table(raster, counts, None if areas is None else sums)


def class_table(
    raster: ClassRaster, counts: NDArray[np.int64], areas: NDArray[np.float64] | None
) -> tuple[list[ClassArea], NodataArea]:
    """Return the areas of the classes that occur in a raster or have a name. Also return the area of nodata pixels.

    ``counts`` are the pixels by class id, and ``areas`` the areas in square metres, or None if they are unknown.
    """
    names = raster.class_names or ()
    nodata = NodataArea(pixels=0, area_m2=None if areas is None else 0.0)
    if raster.nodata is not None and raster.nodata in range(len(counts)):
        number = int(raster.nodata)
        nodata = NodataArea(pixels=int(counts[number]), area_m2=None if areas is None else float(areas[number]))
        counts[number] = 0
    occurring = np.flatnonzero(counts).tolist()
    total = max(1, int(counts.sum()))
    classes = [
        ClassArea(
            id=number,
            name=names[number] if number < len(names) else None,
            pixels=int(counts[number]),
            share=int(counts[number]) / total,
            area_m2=None if areas is None else float(areas[number]),
        )
        for number in sorted({*occurring, *range(len(names))})
    ]
    return classes, nodata
