"""`Area`: the polygons of an area of interest, and the checks of their GeoJSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import OptionError

Ring: TypeAlias = NDArray[np.float64]
"""Closed ring of positions (x, y), [n, 2]."""
Polygon: TypeAlias = tuple[Ring, ...]
"""The outer ring of a polygon, and its holes. A position is inside if it is inside an odd number of rings."""

MOST_VERTICES: Final = 250_000
MOST_FEATURES: Final = 10_000
_DEEPEST: Final = 8
"""Largest nesting depth of GeometryCollections."""
_MIN_POSITIONS: Final = 4
"""Smallest number of positions of a closed ring (RFC 7946, 3.1.6)."""
_FARTHEST: Final = (540.0, 90.0)
"""Largest absolute longitude and latitude that are accepted. An area across the antimeridian may go beyond 180."""


@dataclass(frozen=True, slots=True, eq=False)
class AreaFeature:
    """GeoJSON feature of an area of interest, such as a crop field."""

    name: str
    """The feature's ``id``, or else its property ``name``, or else its number from 1. No other feature has the same
    name."""
    properties: Mapping[str, Any]
    polygons: tuple[Polygon, ...]

    @property
    def geometry(self) -> dict[str, Any]:
        """GeoJSON geometry (MultiPolygon) of the feature's polygons."""
        return {"type": "MultiPolygon", "coordinates": [[ring.tolist() for ring in part] for part in self.polygons]}


@dataclass(frozen=True, slots=True, eq=False)
class Area:
    """Area of interest, as `vllm_mmout.geo.area_of` reads it: its features and their coordinate system."""

    features: tuple[AreaFeature, ...]
    crs: str | None
    """Coordinate system of the positions, or None if it is the coordinate system of the input."""


def wrong(problem: str) -> OptionError:
    """Return an OptionError for the option ``aoi``. ``problem`` follows the word "aoi" in the message."""
    return OptionError(f"aoi {problem}", param="aoi")


def features_of(data: Mapping[str, Any], *, geographic: bool) -> tuple[AreaFeature, ...]:
    """Return the features of a GeoJSON object. Raise OptionError if a geometry does not consist of polygons.

    Also raise OptionError if the object is malformed, or has too many features or positions.
    """
    if data.get("type") == "FeatureCollection":
        listed = data.get("features")
        if not isinstance(listed, list) or not listed:
            raise wrong("is a FeatureCollection without features; give one polygon at least")
        if len(listed) > MOST_FEATURES:
            raise wrong(f"has {len(listed)} features, and may have {MOST_FEATURES}; send them in several requests")
    else:
        listed = [data]
    reader = _Reader(geographic=geographic)
    names, features = _names(listed), []
    for number, (name, feature) in enumerate(zip(names, listed, strict=True), start=1):
        where = f" at feature {number}" if data.get("type") == "FeatureCollection" else ""
        geometry = feature
        properties: Any = {}
        if isinstance(feature, dict) and feature.get("type") == "Feature":
            geometry, properties = feature.get("geometry"), feature.get("properties") or {}
        elif data.get("type") == "FeatureCollection":
            raise wrong(f"is a FeatureCollection with something else than a Feature{where}")
        if not isinstance(properties, dict):
            raise wrong(f"has properties that are no object{where}")
        polygons = tuple(reader.polygons(geometry, where))
        if not polygons:
            raise wrong(f"has an empty geometry{where}; leave the feature out")
        features.append(AreaFeature(name, properties, polygons))
    return tuple(features)


def _names(features: Sequence[Any]) -> list[str]:
    """Return a unique name for each feature. Ids that only number the features, as in geopandas, are ignored."""
    records: list[Mapping[str, Any]] = [feature if isinstance(feature, dict) else {} for feature in features]
    counted = all(str(record.get("id")) == str(place) for place, record in enumerate(records))
    names = []
    for place, record in enumerate(records):
        properties = record.get("properties")
        own = properties.get("name") if isinstance(properties, dict) else None
        id_ = record.get("id")
        chosen = own if id_ is None or counted else id_
        is_name = isinstance(chosen, str | int | float) and not isinstance(chosen, bool) and str(chosen).strip()
        names.append(str(chosen) if is_name else str(place + 1))
    counts = Counter(names)
    unique = [f"{name} ({place})" if counts[name] > 1 else name for place, name in enumerate(names, start=1)]
    return unique if len(set(unique)) == len(unique) else [str(place) for place in range(1, len(names) + 1)]


class _Reader:
    """Reader of polygons from GeoJSON geometries. The reader limits the total number of positions."""

    def __init__(self, *, geographic: bool) -> None:
        self._geographic = geographic
        self._count = 0

    def polygons(self, geometry: Any, where: str, depth: int = 0) -> Iterator[Polygon]:
        """Yield the polygons of a GeoJSON geometry. ``where`` is the end of error messages, such as " at feature 3"."""
        if not isinstance(geometry, dict):
            raise wrong(f"has no geometry{where}; leave the feature out")
        kind = geometry.get("type")
        if kind == "GeometryCollection":
            if depth == _DEEPEST:
                raise wrong(f"has GeometryCollections nested deeper than {_DEEPEST}{where}")
            for part in _listed(geometry.get("geometries"), "geometries", where):
                yield from self.polygons(part, where, depth + 1)
        elif kind == "MultiPolygon":
            for rings in _listed(geometry.get("coordinates"), "coordinates", where):
                yield self._polygon(rings, where)
        elif kind == "Polygon":
            if rings := _listed(geometry.get("coordinates"), "coordinates", where):
                yield self._polygon(rings, where)
        elif kind in {"Point", "MultiPoint", "LineString", "MultiLineString"}:
            raise wrong(f"has a {kind}, which covers no area{where}; buffer it first, as shapely's buffer() does")
        else:
            raise wrong(f"must be polygons in GeoJSON, got the type {str(kind)[:60]!r}{where}")

    def _polygon(self, rings: Any, where: str) -> Polygon:
        if not _listed(rings, "coordinates", where):
            raise wrong(f"has a polygon without a ring{where}")
        return tuple(self._ring(ring, where) for ring in rings)

    def _ring(self, ring: Any, where: str) -> Ring:
        positions = _listed(ring, "coordinates", where)
        self._count += len(positions)
        if self._count > MOST_VERTICES:
            raise wrong(f"has more than {MOST_VERTICES} positions, the most that are taken; simplify its borders")
        pairs = [position[:2] for position in positions if isinstance(position, list)]
        try:
            points = np.array(pairs if len(pairs) == len(positions) else None)
        except ValueError:
            points = np.empty(0)
        if points.ndim != 2 or points.shape[1] != 2 or points.dtype.kind not in "iuf":
            raise wrong(f"has a ring that is no list of positions [x, y]{where}")
        points = points.astype(np.float64)
        if not np.isfinite(points).all():
            raise wrong(f"has a position that is not finite{where}")
        if len(points) < _MIN_POSITIONS or (points[0] != points[-1]).any():
            raise wrong(
                f"has a ring of {len(points)} positions that is not closed{where}; a ring has 4 or more, the last"
                " as the first"
            )
        self._check_degrees(points, where)
        points.setflags(write=False)
        return points

    def _check_degrees(self, points: Ring, where: str) -> None:
        beyond = (np.abs(points) > _FARTHEST).any(axis=1) if self._geographic else np.zeros(len(points), np.bool_)
        if beyond.any():
            x, y = points[beyond][0]
            raise wrong(
                f"is in longitude and latitude, as GeoJSON is, and has the position ({x:.10g}, {y:.10g}){where};"
                ' name another coordinate system by aoi_crs="EPSG:n"'
            )


def _listed(value: Any, name: str, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise wrong(f"has {name} that are no list{where}")
    return value
