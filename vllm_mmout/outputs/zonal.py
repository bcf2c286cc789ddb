"""Compute the areas of classes inside the features of an area of interest, and return them as GeoJSON."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import SaveError
from vllm_mmout.geo import Window, epsg_code, pixel_areas
from vllm_mmout.outputs.formats.geojson_crs import crs_name, placement

if TYPE_CHECKING:
    from vllm_mmout.geo import PlacedArea
    from vllm_mmout.outputs.base import Source
    from vllm_mmout.outputs.raster import RasterOutput

_CHUNK_PIXELS = 2**20
"""Number of pixels of a raster that are read at a time."""


class ClassRow(Protocol):
    """Interface of a row that states the area of one class, such as `vllm_mmout.outputs.ClassArea`."""

    id: int
    name: str | None
    pixels: int
    share: float
    area_m2: float | None


class FeatureCounts:
    """The pixels of each class inside one feature, and their area in square metres."""

    def __init__(self) -> None:
        self.pixels: defaultdict[int, int] = defaultdict(int)
        self.area_m2: defaultdict[int, float] = defaultdict(float)

    def add(self, values: NDArray[np.unsignedinteger], area: float) -> None:
        """Add pixels with the class ids ``values`` to the counts. Each pixel covers ``area`` square metres."""
        counts = np.bincount(values)
        for number in np.flatnonzero(counts).tolist():
            self.pixels[number] += int(counts[number])
            self.area_m2[number] += float(counts[number] * area)


def count_features(raster: RasterOutput, area: PlacedArea) -> list[FeatureCounts]:
    """Count the pixels of a class raster inside each feature, in a single pass over the raster.

    A pixel inside several features counts in each. A pixel of a raster of another size than the input is inside a
    feature if the input's pixel at its centre is.
    """
    counts = [FeatureCounts() for _ in area.polygons]
    windows = [_feature_window(area, feature, (raster.height, raster.width)) for feature in range(len(counts))]
    areas = pixel_areas(raster.georeference, raster.height)
    rows_at_once = max(1, _CHUNK_PIXELS // raster.width)
    for row in range(0, raster.height, rows_at_once):
        end = min(row + rows_at_once, raster.height)
        parts = [(feature, _cut_rows(window, row, end)) for feature, window in enumerate(windows) if window is not None]
        parts = [(feature, part) for feature, part in parts if part.height > 0]
        if not parts:
            continue
        strip = raster.read(Window(row, 0, end - row, raster.width))[0]
        for feature, part in parts:
            inside = area.resized_mask(part, (raster.height, raster.width), feature)
            values = strip[part.row - row : part.row - row + part.height, part.cols]
            for pixels, mask, size in _by_pixel_area(values, inside, None if areas is None else areas[part.rows]):
                counts[feature].add(pixels[mask], size)
    return counts


def _by_pixel_area(
    values: NDArray[Any], inside: NDArray[np.bool_], areas: NDArray[np.float64] | None
) -> Iterator[tuple[NDArray[Any], NDArray[np.bool_], float]]:
    """Yield groups of pixels with equal areas on the ground: all pixels at once if possible, else row by row.

    Each item is the values of the pixels, their mask, and the area of a pixel, which is 0 if it is unknown.
    """
    if areas is None or (areas == areas[0]).all():
        yield values, inside, 0.0 if areas is None else float(areas[0])
    else:
        yield from zip(values, inside, areas.tolist(), strict=True)


def _feature_window(area: PlacedArea, feature: int, size: tuple[int, int]) -> Window | None:
    """Return a window of a raster of ``size`` that holds all pixels of a feature, or None if the feature is outside."""
    boxes = np.array([polygon.box for polygon in area.polygons[feature]]) - (*area.origin[::-1], *area.origin[::-1])
    rows, cols = size[0] / area.size[0], size[1] / area.size[1]
    left, top = boxes[:, :2].min(axis=0) * (cols, rows)
    right, bottom = boxes[:, 2:].max(axis=0) * (cols, rows)
    if not (right > 0 and bottom > 0 and left < size[1] and top < size[0]):
        return None
    row, col = max(0, math.floor(top) - 1), max(0, math.floor(left) - 1)
    height, width = min(size[0], math.ceil(min(bottom, size[0])) + 1), min(size[1], math.ceil(min(right, size[1])) + 1)
    return Window(row, col, height - row, width - col)


def _cut_rows(window: Window, first: int, end: int) -> Window:
    """Return the part of a window in the rows from ``first`` to ``end``. An empty part has a height of 0 or less."""
    row = max(window.row, first)
    return Window(row, window.col, min(window.row + window.height, end) - row, window.width)


def features_geojson(source: Source | None, tables: Sequence[Sequence[ClassRow]]) -> dict[str, Any]:
    """Return the features of the request's area of interest as GeoJSON, with their class areas as properties.

    Args:
        source: input of the result.
        tables: areas of the classes of each feature, in the order of the features.

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
            "properties": _properties(feature.properties, classes),
            "geometry": feature.geometry,
        }
        for feature, classes in zip(area.features, tables, strict=True)
    ]
    return {
        "type": "FeatureCollection",
        "crs": {"type": "name", "properties": {"name": name}},
        "features": features,
    }


def _properties(own: Mapping[str, Any], classes: Sequence[ClassRow]) -> dict[str, Any]:
    """Return a feature's own properties, and three for each class: ``water_pixels``, ``water_share``, ``water_m2``."""
    counts = Counter(area.name for area in classes)
    properties = dict(own)
    for area in classes:
        name = area.name if area.name is not None and counts[area.name] == 1 else f"{area.name or 'class'} {area.id}"
        for kind, value in (("pixels", area.pixels), ("share", area.share), ("m2", area.area_m2)):
            key = f"{name}_{kind}"
            while key in properties:  # the feature's own property
                key = f"{key}_2"
            properties[key] = value
    return properties
