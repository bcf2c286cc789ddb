"""Write polygons, boxes and points as GeoJSON, in the coordinate system of their raster."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from vllm_mmout.outputs.formats import Format, opened, other_suffix
from vllm_mmout.outputs.formats.geojson_crs import placement

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from vllm_mmout.geo import Affine, Georeference, Polygons
    from vllm_mmout.outputs.formats.contents import BoxesContent
    from vllm_mmout.outputs.polygons import PolygonsOutput, TracedPolygons

_VERTICES_PER_TEXT = 2**16
"""Number of polygon vertices that are converted to JSON text at a time."""


def write(output: PolygonsOutput, target: Path | BinaryIO, form: Format) -> None:
    """Write polygons as a GeoJSON FeatureCollection, one feature per line, while they are traced from the raster."""
    crs, _ = placement(output.classes.georeference, instead=other_suffix(output.formats, form.name))
    with opened(target) as (file, folder):
        _write_features(file, output.traced(folder), crs)


def write_boxes(output: BoxesContent, file: BinaryIO, _form: Format) -> None:
    """Write boxes, points or measured features as a GeoJSON FeatureCollection."""
    file.write(json.dumps(output.geojson, allow_nan=False).encode())


def check(georeference: Georeference | None, _form: Format, instead: str) -> None:
    """Raise SaveError if GeoJSON cannot express a georeference. The message suggests the file suffix ``instead``."""
    placement(georeference, instead=instead)


def feature_collection(
    shapes: Iterable[tuple[tuple[float, ...], Mapping[str, Any]]], georeference: Georeference | None
) -> dict[str, Any]:
    """Return a GeoJSON FeatureCollection of (shape, properties) pairs. A shape is a box or a point in pixels.

    A box is (xmin, ymin, xmax, ymax), and a point is (x, y).

    The coordinate system is named in the member ``crs`` of GeoJSON 2008, which GDAL reads and writes, since RFC 7946
    allows only longitude and latitude.
    """
    name, transform = placement(georeference, instead=".json")
    features = [
        {
            "type": "Feature",
            "properties": dict(properties),
            "geometry": _geometry(shape, transform),
        }
        for shape, properties in shapes
    ]
    return {
        "type": "FeatureCollection",
        "crs": {"type": "name", "properties": {"name": name}},
        "features": features,
    }


def _geometry(shape: tuple[float, ...], transform: Affine) -> dict[str, Any]:
    """Convert a box or a point from pixels to a GeoJSON geometry in the raster's coordinate system."""
    if len(shape) == 2:
        (point,) = _placed([(shape[0], shape[1])], transform)
        return {"type": "Point", "coordinates": point}
    left, top, right, bottom = shape
    return {"type": "Polygon", "coordinates": [_ring((left, top, right, bottom), transform)]}


def _placed(points: Iterable[tuple[float, float]], transform: Affine) -> list[list[float]]:
    a, b, c, d, e, f = transform
    return [[a * col + b * row + c, d * col + e * row + f] for col, row in points]


def _ring(edges: tuple[float, float, float, float], transform: Affine) -> list[list[float]]:
    """Convert a box from pixels to a closed ring of (x, y) coordinates in the raster's coordinate system.

    The ring is counterclockwise, as RFC 7946 requires.
    """
    a, b, _, d, e, _ = transform
    left, top, right, bottom = edges
    corners = [(left, top), (left, bottom), (right, bottom), (right, top)]
    if a * e - b * d > 0:  # the transform keeps the direction: counterclockwise on a screen is clockwise in coordinates
        corners.reverse()
    ring = _placed(corners, transform)
    return [*ring, ring[0]]


def _write_features(file: BinaryIO, traced: TracedPolygons, crs: str) -> None:
    head = {"type": "name", "properties": {"name": crs}}
    file.write(b'{"type":"FeatureCollection","crs":' + json.dumps(head).encode() + b',"features":[')
    separator = b"\n"
    for polygons in traced.pieces:
        heads = []
        for number, pixels, area, _ in polygons.facts():
            text = json.dumps(traced.properties(number, pixels, area), allow_nan=False, separators=(",", ":"))
            heads.append(
                separator
                + f'{{"type":"Feature","properties":{text},"geometry":{{"type":"Polygon","coordinates":['.encode()
            )
            separator = b",\n"
        _write_block(file, polygons, traced, heads)
    file.write(b"\n]}\n")


def _write_block(file: BinaryIO, polygons: Polygons, traced: TracedPolygons, heads: Sequence[bytes]) -> None:
    rows, bounds = traced.lattice.closed(polygons.vertices, polygons.counts)
    firsts = np.cumsum(polygons.rings) - polygons.rings
    begins, ends = np.zeros(len(rows), np.uint8), np.zeros(len(rows), np.bool_)
    begins[bounds[:-1]] = 2
    starts = bounds[firsts]
    begins[starts[polygons.continued :]] = 1
    ends[bounds[1:] - 1] = True
    polygon, opened = 0, polygons.continued
    stops = np.append(starts[1:], len(rows)).tolist()
    for low in range(0, len(rows), _VERTICES_PER_TEXT):
        high = min(len(rows), low + _VERTICES_PER_TEXT)
        text, offsets = traced.lattice.text(rows[low:high], begins[low:high], ends[low:high])
        corner = low
        while corner < high:
            if not opened:
                file.write(heads[polygon])
                opened = True
            stop = min(high, stops[polygon])
            file.write(memoryview(text)[offsets[corner - low] : offsets[stop - low]])
            if stop == stops[polygon]:
                polygon += 1
                opened = False
                if polygon < len(stops) or not polygons.continues:
                    file.write(b"]}}")
            corner = stop
