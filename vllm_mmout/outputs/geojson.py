"""GeoJSON in the coordinate system of a raster: how that is named, and rectangles as polygons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_mmout.errors import SaveError
from vllm_mmout.raster.geokeys import epsg_code

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from vllm_mmout.raster.georeference import Georeference
    from vllm_mmout.raster.placement import Affine

_LON_LAT = "urn:ogc:def:crs:OGC:1.3:CRS84"
"""WGS 84 as longitude, latitude: as a raster's transform gives it, while EPSG:4326 has latitude first."""


def feature_collection(
    boxes: Iterable[tuple[tuple[float, float, float, float], Mapping[str, Any]]], georeference: Georeference | None
) -> dict[str, Any]:
    """A FeatureCollection of polygons, one a rectangle.

    The coordinate system stands in the member ``crs`` of the GeoJSON of 2008, which GDAL writes and reads: RFC 7946
    knows longitude and latitude alone.

    Args:
        boxes: xmin, ymin, xmax, ymax in pixels of the raster, and the properties.
        georeference: of the raster.

    Raises:
        SaveError: the raster has no transform or no coordinate system with an EPSG code.

    """
    name, transform = placement(georeference, instead=".json")
    features = [
        {
            "type": "Feature",
            "properties": dict(properties),
            "geometry": {"type": "Polygon", "coordinates": [_ring(edges, transform)]},
        }
        for edges, properties in boxes
    ]
    return {
        "type": "FeatureCollection",
        "crs": {"type": "name", "properties": {"name": name}},
        "features": features,
    }


def placement(georeference: Georeference | None, *, instead: str) -> tuple[str, Affine]:
    """The name of a raster's coordinate system, and the transform into it.

    Args:
        georeference: of the raster.
        instead: suffix of a format that needs neither, for errors.

    Raises:
        SaveError: the raster has no transform or no coordinate system with an EPSG code.

    """
    if georeference is None:
        raise SaveError(f"GeoJSON needs a georeferenced input, this result's has no georeference; save it as {instead}")
    if georeference.transform is None:
        raise SaveError(
            "GeoJSON needs an input with an affine transform, this result's has ground control points or RPCs;"
            f" warp it first (gdalwarp), or save the result as {instead}"
        )
    code = None if georeference.crs is None else epsg_code(georeference.crs)
    if code is None:
        has = georeference.why_no_crs if georeference.crs is None else "a coordinate system without an EPSG code"
        raise SaveError(
            f"GeoJSON names a coordinate system by its EPSG code, this result's input has {has}; reproject it first"
            f" (gdalwarp -t_srs EPSG:n), or save the result as {instead}"
        )
    return _LON_LAT if code == 4326 else f"urn:ogc:def:crs:EPSG::{code}", georeference.transform


def _ring(edges: tuple[float, float, float, float], transform: Affine) -> list[list[float]]:
    """The closed outline of a rectangle in coordinates, counterclockwise as RFC 7946 wants it."""
    a, b, c, d, e, f = transform
    left, top, right, bottom = edges
    corners = [(left, top), (left, bottom), (right, bottom), (right, top)]
    if a * e - b * d > 0:  # the transform does not turn over: what is counterclockwise in rows and columns is not here
        corners.reverse()
    ring = [[a * col + b * row + c, d * col + e * row + f] for col, row in corners]
    return [*ring, ring[0]]
