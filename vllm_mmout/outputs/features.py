"""Polygons as features of GeoJSON, written piece by piece."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import BinaryIO

    from vllm_mmout.vectors.found import Polygons
    from vllm_mmout.vectors.lattice import Lattice

_TEXT = 2**16
"""Corners that are turned into text at once."""


@dataclass(frozen=True, slots=True)
class Described:
    """What is said of polygons beside their shape."""

    names: Sequence[str] | None
    """Of each class, from 0."""
    measured: bool
    """Whether areas are known, in square metres."""

    def name(self, number: int) -> str | None:
        """Of a class, None for one without."""
        return self.names[number] if self.names is not None and number < len(self.names) else None

    def properties(self, number: int, pixels: int, area: float) -> dict[str, Any]:
        """Of one polygon, as plain data."""
        return {
            "class": number,
            "name": self.name(number),
            "pixels": pixels,
            "area_m2": area if self.measured else None,
        }


def features(found: Iterable[Polygons], lattice: Lattice, described: Described) -> Iterator[dict[str, Any]]:
    """Each polygon as a feature of GeoJSON, in plain data."""
    rings: list[Any] = []
    for polygons in found:
        rows, bounds = lattice.closed(polygons.vertices, polygons.counts)
        points = lattice.points(rows).tolist()
        ends = bounds.tolist()
        ring = 0
        for place, (number, pixels, area, count) in enumerate(polygons.facts(), start=1):
            rings += [points[ends[one] : ends[one + 1]] for one in range(ring, ring + count)]
            ring += count
            if place == len(polygons.rings) and polygons.continues:
                break
            yield {
                "type": "Feature",
                "properties": described.properties(number, pixels, area),
                "geometry": {"type": "Polygon", "coordinates": rings},
            }
            rings = []


def write_geojson(file: BinaryIO, found: Iterable[Polygons], lattice: Lattice, described: Described, crs: str) -> None:
    """Write a FeatureCollection, a feature a line.

    Args:
        file: open for writing.
        found: the polygons.
        lattice: their corners.
        described: what is said of them.
        crs: name of the coordinate system.

    """
    head = {"type": "name", "properties": {"name": crs}}
    file.write(b'{"type":"FeatureCollection","crs":' + json.dumps(head).encode() + b',"features":[')
    separator = b"\n"
    for polygons in found:
        heads = []
        for number, pixels, area, _ in polygons.facts():
            text = json.dumps(described.properties(number, pixels, area), allow_nan=False, separators=(",", ":"))
            heads.append(
                separator
                + f'{{"type":"Feature","properties":{text},"geometry":{{"type":"Polygon","coordinates":['.encode()
            )
            separator = b",\n"
        _write_block(file, polygons, lattice, heads)
    file.write(b"\n]}\n")


def _write_block(file: BinaryIO, polygons: Polygons, lattice: Lattice, heads: Sequence[bytes]) -> None:
    """Write some polygons, or parts of polygons."""
    rows, bounds = lattice.closed(polygons.vertices, polygons.counts)
    firsts = np.cumsum(polygons.rings) - polygons.rings
    begins, ends = np.zeros(len(rows), np.uint8), np.zeros(len(rows), np.bool_)
    begins[bounds[:-1]] = 2
    starts = bounds[firsts]
    begins[starts[polygons.continued :]] = 1
    ends[bounds[1:] - 1] = True
    place, opened = 0, polygons.continued
    stops = np.append(starts[1:], len(rows)).tolist()
    for low in range(0, len(rows), _TEXT):
        high = min(len(rows), low + _TEXT)
        text, at = lattice.text(rows[low:high], begins[low:high], ends[low:high])
        here = low
        while here < high:
            if not opened:
                file.write(heads[place])
                opened = True
            there = min(high, stops[place])
            file.write(memoryview(text)[at[here - low] : at[there - low]])
            if there == stops[place]:
                place += 1
                opened = False
                if place < len(stops) or not polygons.continues:
                    file.write(b"]}}")
            here = there
