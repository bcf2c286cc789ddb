"""Compute the area that each class of a raster covers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.geo import pixel_areas
from vllm_mmout.outputs.drawing import Line, draw_caption
from vllm_mmout.outputs.formats import formats_of
from vllm_mmout.outputs.raster import check_classes, class_rows
from vllm_mmout.outputs.rendering import class_colour
from vllm_mmout.outputs.structured import StructuredOutput

from pydantic import BaseModel, PrivateAttr  # isort: skip - structured.py, imported above, raises a helpful error without pydantic

if TYPE_CHECKING:
    from PIL.Image import Image

    from vllm_mmout.outputs.base import Source
    from vllm_mmout.outputs.raster import RasterOutput


_AT_ONCE = 2**20
"""Number of pixels counted at a time, which bounds the memory: NumPy converts them to int64."""


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
    """Area in square metres, or None if the raster's georeference does not determine it."""


class AreasOutput(StructuredOutput):
    """Area of each class of a raster. Classes that occur or have a name are listed, ordered by id."""

    output_kinds: ClassVar[tuple[str, ...]] = ("areas", *StructuredOutput.output_kinds)
    formats: ClassVar[dict[str, str]] = {**formats_of("areas"), **StructuredOutput.formats}

    classes: list[ClassArea]

    _raster: RasterOutput | None = PrivateAttr(default=None)
    _palette: Any = PrivateAttr(default=None)

    @classmethod
    def of(cls, raster: RasterOutput) -> Self:
        """Count the pixels of each class of a raster in a single pass.

        Raises InputError unless the raster is a single band of uint8 or uint16.
        """
        areas = cls(classes=_counted(raster))
        areas._palette = raster.palette
        return areas

    @classmethod
    def taking(cls, raster: RasterOutput) -> Self:
        """Count the pixels of each class of a raster that the caller does not use any more.

        A raster on disk is closed. A raster in memory is kept until `placed`, which counts it again.
        """
        from vllm_mmout.outputs.stored import StoredRaster

        areas = cls.of(raster)
        if isinstance(raster, StoredRaster):
            raster.close()
        else:
            areas._raster = raster  # noqa: SLF001 - of our own object
        return areas

    def placed(self, source: Source) -> Self:
        """Return the areas within the observed part of the input, in square metres if its georeference is known."""
        counted = self if self._raster is None else self.of(self._raster.placed(source))
        return super(AreasOutput, counted).placed(source)

    def colour_of(self, number: int) -> tuple[int, int, int]:
        """Return the (red, green, blue) colour of a class, each 0 to 255, as in pictures of the raster."""
        if self._palette is None or number >= len(self._palette):
            return class_colour(number)
        red, green, blue = self._palette[number].tolist()
        return red, green, blue

    def __getitem__(self, key: int | str) -> ClassArea:
        """Return the class with an id or a name. Raise KeyError if no class or several classes match."""
        matches = [area for area in self.classes if key in (area.id, area.name)]
        if len(matches) > 1:
            raise KeyError(
                f"{key!r} names the classes {', '.join(str(area.id) for area in matches)}; take one by its id"
            )
        if not matches:
            raise KeyError(key)
        return matches[0]

    def draw(self, picture: Image) -> Image:
        """Write the names and shares of the classes into the lower left corner of a picture, largest class first."""
        areas = sorted((area for area in self.classes if area.pixels), key=lambda area: -area.pixels)
        return draw_caption(
            picture,
            [Line(f"{area.share:.1%} {area.name or f'class {area.id}'}", self.colour_of(area.id)) for area in areas],
        )


def _counted(raster: RasterOutput) -> list[ClassArea]:
    check_classes(raster)
    areas = pixel_areas(raster.georeference, raster.height)
    even = areas is None or bool((areas == areas[0]).all())
    step = max(1, _AT_ONCE // raster.width) if even else 1
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
    return _table(raster, counts, None if areas is None else sums)


def _table(raster: RasterOutput, counts: NDArray[np.int64], areas: NDArray[np.float64] | None) -> list[ClassArea]:
    names = raster.class_names or ()
    if raster.nodata is not None and raster.nodata in range(len(counts)):
        counts[int(raster.nodata)] = 0
    occurring = np.flatnonzero(counts).tolist()
    total = max(1, int(counts.sum()))
    return [
        ClassArea(
            id=number,
            name=names[number] if number < len(names) else None,
            pixels=int(counts[number]),
            share=int(counts[number]) / total,
            area_m2=None if areas is None else float(areas[number]),
        )
        for number in sorted({*occurring, *range(len(names))})
    ]
