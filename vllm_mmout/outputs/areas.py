"""AreasOutput: how much of a raster each class covers."""

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

from pydantic import BaseModel, PrivateAttr  # isort: skip - the module above says what is missing without it

if TYPE_CHECKING:
    from PIL.Image import Image

    from vllm_mmout.outputs.base import Source
    from vllm_mmout.outputs.raster import RasterOutput


_AT_ONCE = 2**20
"""Pixels that are counted at once: numpy makes int64 of them."""


class ClassArea(BaseModel):
    """One class of a raster."""

    id: int
    """As the model counts, from 0."""
    name: str | None
    pixels: int
    share: float
    """Of all pixels that have a class, from 0 to 1."""
    area_m2: float | None
    """Square metres, as `vllm_mmout.geo.pixel_areas` has them; None where they cannot be told."""


class AreasOutput(StructuredOutput):
    """How much of a raster each class covers: those that have a name or occur, by their numbers."""

    output_kinds: ClassVar[tuple[str, ...]] = ("areas", *StructuredOutput.output_kinds)
    formats: ClassVar[dict[str, str]] = {**formats_of("areas"), **StructuredOutput.formats}

    classes: list[ClassArea]

    _raster: RasterOutput | None = PrivateAttr(default=None)
    _palette: Any = PrivateAttr(default=None)

    @classmethod
    def of(cls, raster: RasterOutput) -> Self:
        """Count the pixels of a raster of classes, one band of uint8 or uint16 (else InputError), in one pass."""
        areas = cls(classes=_counted(raster))
        areas._palette = raster.palette
        return areas

    @classmethod
    def taking(cls, raster: RasterOutput) -> Self:
        """The same of a raster that serves nothing else: one on disk is closed, one in memory kept until `placed`."""
        from vllm_mmout.outputs.stored import StoredRaster

        areas = cls.of(raster)
        if isinstance(raster, StoredRaster):
            raster.close()
        else:
            areas._raster = raster  # noqa: SLF001 - of our own object
        return areas

    def placed(self, source: Source) -> Self:
        """The same of the part of the input that was observed, with areas where its place is known."""
        counted = self if self._raster is None else self.of(self._raster.placed(source))
        return super(AreasOutput, counted).placed(source)

    def colour_of(self, number: int) -> tuple[int, int, int]:
        """Red, green and blue of a class, as the raster of the classes has them."""
        if self._palette is None or number >= len(self._palette):
            return class_colour(number)
        red, green, blue = self._palette[number].tolist()
        return red, green, blue

    def __getitem__(self, which: int | str) -> ClassArea:
        """Return the class of a number or a name; KeyError where none or several have the name."""
        found = [one for one in self.classes if which in (one.id, one.name)]
        if len(found) > 1:
            raise KeyError(f"{which!r} names the classes {', '.join(str(one.id) for one in found)}; take one by its id")
        if not found:
            raise KeyError(which)
        return found[0]

    def draw(self, picture: Image) -> Image:
        """Write the classes that occur into the lower left corner, the largest first, in their colours."""
        there = sorted((one for one in self.classes if one.pixels), key=lambda one: -one.pixels)
        return draw_caption(
            picture, [Line(f"{one.share:.1%} {one.name or f'class {one.id}'}", self.colour_of(one.id)) for one in there]
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
            found = np.bincount(rows[start : start + step].ravel())
            counts[: len(found)] += found
            if areas is not None and not even:
                sums[: len(found)] += found * areas[row + start]
        row += len(rows)
    if areas is not None and even:
        sums = counts * areas[0]
    return _table(raster, counts, None if areas is None else sums)


def _table(raster: RasterOutput, counts: NDArray[np.int64], areas: NDArray[np.float64] | None) -> list[ClassArea]:
    names = raster.class_names or ()
    if raster.nodata is not None and raster.nodata in range(len(counts)):
        counts[int(raster.nodata)] = 0
    listed = np.flatnonzero(counts).tolist()
    total = max(1, int(counts.sum()))
    return [
        ClassArea(
            id=number,
            name=names[number] if number < len(names) else None,
            pixels=int(counts[number]),
            share=int(counts[number]) / total,
            area_m2=None if areas is None else float(areas[number]),
        )
        for number in sorted({*listed, *range(len(names))})
    ]
