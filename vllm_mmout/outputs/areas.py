"""Compute the area that each class of a raster covers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo import area_of, area_text, pixel_areas, placed_area
from vllm_mmout.outputs.base import Source
from vllm_mmout.outputs.class_rows import ClassRaster, check_classes
from vllm_mmout.outputs.drawing import Line, draw_caption
from vllm_mmout.outputs.formats import formats_of
from vllm_mmout.outputs.rendering import colour_of_class
from vllm_mmout.outputs.structured import StructuredOutput
from vllm_mmout.outputs.zonal import count_features, features_geojson

from pydantic import BaseModel, Field, PrivateAttr  # isort: skip - structured.py, imported above, raises a helpful error without pydantic

from vllm_mmout.outputs.class_areas import ClassArea, NodataArea, class_table, count_areas  # isort: skip - imports pydantic

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image

    from vllm_mmout.geo import PlacedArea


class CountedRaster(ClassRaster, Protocol):
    """Interface of a raster, such as `RasterOutput`, for which `AreasOutput` counts the pixels of each class."""

    in_place: ClassVar[bool]
    path: str | None
    palette: NDArray[np.uint8] | None
    assumed: tuple[str, ...]

    def placed(self, source: Source) -> CountedRaster:
        """Return the raster with the mask and the georeference of its input."""

    def close(self) -> None:
        """Remove the raster's temporary file."""


class FeatureAreas(BaseModel):
    """The area of each class inside one feature of an area of interest."""

    properties: dict[str, Any]
    """The feature's properties in the request's GeoJSON."""
    classes: list[ClassArea]
    nodata: NodataArea | None = None
    """Area of the nodata pixels inside the feature, or None if unknown. Parts of the feature outside the raster do not
    count."""

    def __getitem__(self, key: int | str) -> ClassArea:
        """Return the class whose id or name is ``key``. Raise KeyError if no class or several classes match."""
        return _class_of(self.classes, key)


class AreasOutput(StructuredOutput):
    """Area of each class of a raster. Classes that occur or have a name are listed, ordered by id."""

    takes_area: ClassVar[bool] = True
    output_kinds: ClassVar[tuple[str, ...]] = ("areas", "zones", *StructuredOutput.output_kinds)
    formats: ClassVar[dict[str, str]] = {
        **formats_of("areas"),
        **StructuredOutput.formats,
        **formats_of("zones"),
    }

    classes: list[ClassArea]
    nodata: NodataArea | None = None
    """Area of the nodata pixels inside the request's ``aoi``, or in the whole raster without ``aoi``. None if
    unknown."""
    features: dict[str, FeatureAreas] = Field(default_factory=dict, exclude_if=lambda features: not features)
    """Class areas inside each feature of the request's ``aoi``, by the feature's name. Empty if ``aoi`` has only one
    feature.

    A pixel inside several features counts in each feature, but only once in ``classes``. JSON leaves out an empty
    dict."""

    _inside: bool = PrivateAttr(default=False)
    """Whether only the pixels inside an area of interest were counted."""
    _raster: CountedRaster | None = PrivateAttr(default=None)
    _palette: Any = PrivateAttr(default=None)

    @classmethod
    def of(cls, raster: CountedRaster, area: PlacedArea | None = None) -> Self:
        """Count the pixels of each class of a raster, and its nodata pixels, in a single pass.

        If ``area``, the area of interest on the raster, is given, only pixels inside are counted. If it has several
        features, `features` are counted, too.

        Raises InputError unless the raster is a single band of uint8 or uint16.
        """
        (classes, nodata), *tables = [count_areas(raster)] if area is None else _tables(raster, area)
        areas = cls(classes=classes, nodata=nodata)
        if area is not None and tables:
            areas.features = {
                feature.name: FeatureAreas(properties=dict(feature.properties), classes=classes, nodata=nodata)
                for feature, (classes, nodata) in zip(area.area.features, tables, strict=True)
            }
        areas._inside = area is not None
        areas._palette = raster.palette
        return areas

    @classmethod
    def taking(cls, raster: CountedRaster, area: PlacedArea | None = None) -> Self:
        """Take ownership of a raster, and return the class areas. The caller must not use the raster afterwards.

        A `StoredRaster`, which has the georeference of its input already, is closed. ``area`` is the area of interest
        of its scene, in which pixels are counted. A raster in memory is kept until `placed`, which counts it again.
        """
        if raster.in_place:
            areas = cls.of(raster, area)
            raster.close()
        else:
            areas = cls.of(raster)
            areas._raster = raster  # noqa: SLF001 - of our own object
        return areas

    def placed(self, source: Source) -> Self:
        """Return the class areas, counting only the pixels that are valid in the input ``source``.

        The areas are also in square metres if the georeference of the input is known. If the request has an area of
        interest of several features, `features` are counted, too.
        """
        raster = None if self._raster is None else self._raster.placed(source)
        counted = self if raster is None else self.of(raster, source.area)
        if source.area is not None and len(source.area.polygons) > 1 and not counted.features:
            raise InputError(
                "the areas of the features of aoi were not counted; in assemble() call AreasOutput.taking(raster,"
                " parts.source.area)",
                param="aoi",
            )
        placed = super(AreasOutput, counted).placed(source)
        if source.area is not None and not placed._inside:  # noqa: SLF001 - an object of this class
            placed.nodata = None  # pixels outside the area were counted, too
        return placed

    @property
    def geojson(self) -> dict[str, Any]:
        """GeoJSON FeatureCollection of the features of the request's ``aoi``, with class areas among the properties.

        Raises SaveError if the request has no ``aoi``, or GeoJSON cannot express its coordinate system.
        """
        return features_geojson(self._source, list(self.features.values()) or [self])

    def colour_of(self, number: int) -> tuple[int, int, int]:
        """Return the (red, green, blue) colour of a class in pictures of its raster, each 0 to 255."""
        return colour_of_class(self._palette, number)

    def figure(self, *, title: str | None = None) -> Figure:
        """Draw a bar chart of the areas of the classes in the raster, largest first, as a matplotlib ``Figure``.

        Needs ``pip install "vllm-mmout[figure]"``.
        """
        from vllm_mmout.outputs.figure import areas_figure

        return areas_figure(self.classes, self.colour_of, title=title)

    def __getitem__(self, key: int | str) -> ClassArea:
        """Return the class whose id or name is ``key``. Raise KeyError if no class or several classes match."""
        return _class_of(self.classes, key)

    def draw(self, picture: Image) -> Image:
        """Write the names and shares of the classes into the lower left corner of a picture, largest class first."""
        areas = sorted((area for area in self.classes if area.pixels), key=lambda area: -area.pixels)
        return draw_caption(
            picture,
            [Line(f"{area.share:.1%} {area.name or f'class {area.id}'}", self.colour_of(area.id)) for area in areas],
        )


def areas_inside(raster: CountedRaster, aoi: Any, aoi_crs: str | None) -> AreasOutput:
    """Return the class areas of a raster inside ``aoi``, or of the whole raster if ``aoi`` is None.

    `RasterOutput.areas` calls this function.
    """
    if aoi is None and aoi_crs is not None:
        raise OptionError(f"aoi_crs is {aoi_crs!r} without aoi; give the area as aoi=...", param="aoi")
    size, area, assumed = (raster.height, raster.width), None, raster.assumed
    if aoi is not None:
        area = placed_area(area_of(area_text(aoi, aoi_crs)), raster.georeference, size, raster.path or "the raster")
        assumed = (*assumed, *area.assumed)
    source = Source(size=size, georeference=raster.georeference, area=area, assumed=assumed)
    return AreasOutput.of(raster, area).placed(source)


def _class_of(classes: Sequence[ClassArea], key: int | str) -> ClassArea:
    matches = [area for area in classes if key in (area.id, area.name)]
    if len(matches) > 1:
        raise KeyError(f"{key!r} names the classes {', '.join(str(area.id) for area in matches)}; take one by its id")
    if not matches:
        raise KeyError(key)
    return matches[0]


def _tables(raster: ClassRaster, area: PlacedArea) -> Iterator[tuple[list[ClassArea], NodataArea]]:
    """Yield the class areas inside the whole area of interest, then inside each feature if there are several.

    Each item is (areas of the classes, area of the nodata pixels).
    """
    check_classes(raster)
    has_areas = pixel_areas(raster.georeference, 1) is not None
    features = range(len(area.polygons)) if len(area.polygons) > 1 else ()
    for counted in count_features(raster, area, (None, *features)):
        counts = np.zeros(np.iinfo(raster.dtype).max + 1, np.int64)
        sums = np.zeros(len(counts))
        for number, pixels in counted.pixels.items():
            counts[number], sums[number] = pixels, counted.area_m2[number]
        yield class_table(raster, counts, sums if has_areas else None)
