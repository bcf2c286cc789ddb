"""Count the classes inside the features of an area of interest, and return their areas as GeoJSON."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import SaveError
from vllm_mmout.geo import Window, epsg_code, pixel_areas
from vllm_mmout.outputs.class_rows import class_rows
from vllm_mmout.outputs.formats.geojson_crs import crs_name, placement

if TYPE_CHECKING:
    from vllm_mmout.geo import PlacedArea
    from vllm_mmout.outputs.base import Source
    from vllm_mmout.outputs.class_rows import ClassRaster

_CHUNK_PIXELS = 2**20
"""Number of pixels of a raster that are counted at a time."""


class ClassRow(Protocol):
    """Interface of a row that states the area of one class, such as `vllm_mmout.outputs.ClassArea`."""

    id: int
    name: str | None
    pixels: int
    share: float
    area_m2: float | None


class NodataRow(Protocol):
    """Interface of a table row that states the area of the nodata pixels, such as `vllm_mmout.outputs.NodataArea`."""

    pixels: int
    area_m2: float | None


class AreaTable(Protocol):
    """Interface of an object with the class areas of one feature, such as `vllm_mmout.outputs.FeatureAreas`."""

    @property
    def classes(self) -> Sequence[ClassRow]:
        """Area of each class."""

    @property
    def nodata(self) -> NodataRow | None:
        """Number and area of the pixels without a class. None if the number is unknown."""


class FeatureCounts:
    """Number of pixels and area in square metres of each class inside one feature."""

    def __init__(self) -> None:
        self.pixels: defaultdict[int, int] = defaultdict(int)
        self.area_m2: defaultdict[int, float] = defaultdict(float)

    def add(self, values: NDArray[np.unsignedinteger], area: float) -> None:
        """Add pixels with the class ids ``values`` to the counts. Each pixel covers ``area`` square metres."""
        counts = np.bincount(values)
        for number in np.flatnonzero(counts).tolist():
            self.pixels[number] += int(counts[number])
            self.area_m2[number] += float(counts[number] * area)


def count_features(raster: ClassRaster, area: PlacedArea, features: Sequence[int | None]) -> list[FeatureCounts]:
    """Count the pixels of a class raster inside each of ``features``, in a single pass over the raster.

    A feature is an index into ``area.polygons``, or None for the whole area. A pixel inside several features counts in
    each, and once in the whole area. A pixel of a raster of another size than the input is inside a feature if the
    input's pixel at its centre is.
    """
    size = (raster.height, raster.width)
    counts = [FeatureCounts() for _ in features]
    windows = [_feature_window(area, feature, size) for feature in features]
    around = _feature_window(area, None, size)
    if around is None:
        return counts
    areas = pixel_areas(raster.georeference, raster.height)
    step = max(1, _CHUNK_PIXELS // around.width)
    row = around.row
    for rows in class_rows(raster, around):
        for start in range(0, len(rows), step):
            strip = rows[start : start + step]
            for feature, window, counted in zip(features, windows, counts, strict=True):
                part = None if window is None else _cut_rows(window, row, row + len(strip))
                if part is None or part.height <= 0:
                    continue
                inside = area.resized_mask(part, size, feature)
                first, left = part.row - row, part.col - around.col
                values = strip[first : first + part.height, left : left + part.width]
                for pixels, mask, each in _by_pixel_area(values, inside, None if areas is None else areas[part.rows]):
                    counted.add(pixels[mask], each)
            row += len(strip)
    return counts


def _by_pixel_area(
    values: NDArray[Any], inside: NDArray[np.bool_], areas: NDArray[np.float64] | None
) -> Iterator[tuple[NDArray[Any], NDArray[np.bool_], float]]:
    """Yield pixels in groups. All pixels of a group cover the same area on the ground.

    A single group has all pixels if their areas are equal or unknown. Otherwise each row is a group. Each item is the
    values of the pixels, their mask, and the area of a pixel. An unknown area is 0.
    """
    if areas is None or (areas == areas[0]).all():
        yield values, inside, 0.0 if areas is None else float(areas[0])
    else:
        yield from zip(values, inside, areas.tolist(), strict=True)


def _feature_window(area: PlacedArea, feature: int | None, size: tuple[int, int]) -> Window | None:
    """Return a window of a raster of ``size`` that holds all pixels of a feature, or None if the feature is outside.

    If ``feature`` is None, the window holds all features.
    """
    polygons = chain(*area.polygons) if feature is None else area.polygons[feature]
    boxes = np.array([polygon.box for polygon in polygons]) - (*area.origin[::-1], *area.origin[::-1])
    rows, cols = size[0] / area.size[0], size[1] / area.size[1]
    left, top = boxes[:, :2].min(axis=0) * (cols, rows)
    right, bottom = boxes[:, 2:].max(axis=0) * (cols, rows)
    if not (right > 0 and bottom > 0 and left < size[1] and top < size[0]):
        return None
    row, col = max(0, math.floor(top) - 1), max(0, math.floor(left) - 1)
    height, width = min(size[0], math.ceil(min(bottom, size[0])) + 1), min(size[1], math.ceil(min(right, size[1])) + 1)
    return Window(row, col, height - row, width - col)


def _cut_rows(window: Window, first: int, end: int) -> Window:
    """Cut a window to the rows from ``first`` up to, but not including, ``end``.

    If the window has none of these rows, the height of the result is 0 or negative.
    """
    row = max(window.row, first)
    return Window(row, window.col, min(window.row + window.height, end) - row, window.width)


def features_geojson(source: Source | None, tables: Sequence[AreaTable]) -> dict[str, Any]:
    """Return the features of the request's area of interest as GeoJSON, with their class areas as properties.

    Args:
        source: input of the result.
        tables: areas inside each feature, in the order of the features.

    Raises:
        SaveError: the request has no area, or GeoJSON cannot express its coordinate system.

    """
    if source is None or source.area is None:
        raise SaveError("areas are written as GeoJSON for the features of aoi=...; give one, or save as .csv or .json")
    area = source.area.area
    code = None if area.crs is None else epsg_code(area.crs)
    if area.crs is None:
        name = placement(source.georeference, instead=".csv")[0]
    elif code is None:
        raise SaveError("GeoJSON names a coordinate system by its EPSG code, and that of aoi has none; save as .csv")
    else:
        name = crs_name(code)
    features = [
        {
            "type": "Feature",
            "id": feature.name,
            "properties": _properties(feature.properties, table),
            "geometry": feature.geometry,
        }
        for feature, table in zip(area.features, tables, strict=True)
    ]
    return {
        "type": "FeatureCollection",
        "crs": {"type": "name", "properties": {"name": name}},
        "features": features,
    }


def _properties(own: Mapping[str, Any], table: AreaTable) -> dict[str, Any]:
    """Return a feature's own properties, extended by the number of pixels, the share and the area of each class.

    The class "water" adds ``water_pixels``, ``water_share`` and ``water_m2``. ``nodata_pixels`` and ``nodata_m2``
    come last, and are None if unknown.
    """
    counts = Counter(area.name for area in table.classes)
    rows: list[tuple[str, Any]] = []
    for area in table.classes:
        name = area.name if area.name is not None and counts[area.name] == 1 else f"{area.name or 'class'} {area.id}"
        rows += (f"{name}_pixels", area.pixels), (f"{name}_share", area.share), (f"{name}_m2", area.area_m2)
    nodata = table.nodata
    rows += ("nodata_pixels", nodata and nodata.pixels), ("nodata_m2", nodata and nodata.area_m2)
    properties = dict(own)
    for column, value in rows:
        key = column
        while key in properties:  # the feature's own property
            key = f"{key}_2"
        properties[key] = value
    return properties
