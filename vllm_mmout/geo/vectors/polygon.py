"""Polygons and their rings: those that are whole, and what tracing keeps of those that are not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.geo.vectors.corners import FLAG_BITS, TOUCH


@dataclass(frozen=True, slots=True, eq=False)
class Polygons:
    """Some polygons, each a region of connected pixels of one class. A large one may come in several of these."""

    classes: NDArray[np.int32]
    pixels: NDArray[np.int64]
    """Of each, in its whole."""
    areas: NDArray[np.float64]
    """The sum over the pixels of each, in its whole."""
    rings: NDArray[np.int64]
    """How many rings of each are here."""
    counts: NDArray[np.int64]
    """Corners of each ring; the first ring of a polygon is its exterior, counterclockwise as a picture is seen, the
    others are holes and run the other way."""
    vertices: NDArray[np.int32]
    """[n, 2]: column, with flags (`vllm_mmout.geo.vectors.corners`), and row of the corners, ring by ring."""
    continued: bool
    """Whether the first polygon began before."""
    continues: bool
    """Whether rings of the last polygon are still to come."""

    def facts(self) -> Iterator[tuple[int, int, float, int]]:
        """Class, pixels, area and number of rings here of each."""
        return zip(self.classes.tolist(), self.pixels.tolist(), self.areas.tolist(), self.rings.tolist(), strict=True)


@dataclass(frozen=True, slots=True, eq=False)
class OpenBorders:
    """Borders that cross the lower edge of what was traced, with their ends there."""

    heads: NDArray[np.int32]
    """Column in which each comes up to its beginning."""
    tails: NDArray[np.int32]
    first: NDArray[np.intp]
    """Its first segment."""
    last: NDArray[np.intp]
    region: NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Regions:
    """What is known of regions."""

    classes: NDArray[np.int32]
    pixels: NDArray[np.int64]
    areas: NDArray[np.float64]

    def some(self, which: NDArray[np.bool_]) -> Regions:
        """Those of them that are chosen."""
        return Regions(self.classes[which], self.pixels[which], self.areas[which])


@dataclass(frozen=True, slots=True, eq=False)
class Rings:
    """Closed borders."""

    region: NDArray[np.intp]
    address: NDArray[np.int64]
    """In the spool; below 0: -1 - the place among the corners at hand."""
    count: NDArray[np.int64]
    hole: NDArray[np.bool_]

    def some(self, which: NDArray[np.bool_] | NDArray[np.intp]) -> Rings:
        """Those of them that are chosen."""
        return Rings(self.region[which], self.address[which], self.count[which], self.hole[which])

    def and_(self, other: Rings) -> Rings:
        """These and others."""
        return Rings(
            np.concatenate([self.region, other.region]),
            np.concatenate([self.address, other.address]),
            np.concatenate([self.count, other.count]),
            np.concatenate([self.hole, other.hole]),
        )

    def of(self, region: NDArray[np.intp]) -> Rings:
        """The same with the new number of each region."""
        return Rings(region[self.region], self.address, self.count, self.hole)


def doubled_areas(vertices: NDArray[np.int32], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Twice the signed area of each ring in pixels, positive where it runs counterclockwise as a picture is seen."""
    if not len(counts):
        return np.zeros(0, np.int64)
    ends = np.cumsum(counts)
    cols, rows = vertices[:, 0].astype(np.int64), vertices[:, 1].astype(np.int64)
    after = np.arange(1, len(vertices) + 1)
    after[ends - 1] = ends - counts
    return np.add.reduceat(rows * cols[after] - cols * rows[after], ends - counts)


def simple_rings(
    vertices: NDArray[np.int32], counts: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.intp]]:
    """Cut rings that pass a point twice into rings that touch each other there, as simple features (OGC 06-103r4) ask.

    A region lies on two opposite sides of such a point, so that what is outside lies between the two passes: parts that
    are cut off never cross, they nest.

    Returns:
        Vertices and counts of the rings, and the number of the ring that each comes from.

    """
    ring = np.repeat(np.arange(len(counts)), counts)
    touching = np.flatnonzero(vertices[:, 0] & TOUCH)
    table = np.stack([ring[touching], vertices[touching, 0], vertices[touching, 1]])
    order = np.lexsort(table)
    same = (table[:, order[1:]] == table[:, order[:-1]]).all(axis=0)
    if not same.any():
        return vertices, counts, np.arange(len(counts))
    twice = np.zeros(len(vertices), np.bool_)
    twice[touching[order[1:][same]]] = twice[touching[order[:-1][same]]] = True
    starts = np.cumsum(counts) - counts
    places: list[NDArray[np.intp]] = []
    sizes: list[int] = []
    origins: list[int] = []
    wanted = np.unique(ring[twice])
    last = 0
    for number in wanted.tolist():
        sizes += counts[last:number].tolist()
        origins += range(last, number)
        places.append(np.arange(starts[last], starts[number]))
        for part in _cut(vertices, int(starts[number]), int(counts[number]), twice):
            places.append(part)
            sizes.append(len(part))
            origins.append(number)
        last = number + 1
    sizes += counts[last:].tolist()
    origins += range(last, len(counts))
    places.append(np.arange(len(vertices) - int(counts[last:].sum()), len(vertices)))
    return vertices[np.concatenate(places)], np.array(sizes, np.int64), np.array(origins, np.intp)


def _cut(vertices: NDArray[np.int32], start: int, count: int, twice: NDArray[np.bool_]) -> list[NDArray[np.intp]]:
    parts = []
    stops = (start + np.flatnonzero(twice[start : start + count])).tolist()
    opened: list[tuple[tuple[int, int], list[NDArray[np.intp]]]] = []
    pieces: list[NDArray[np.intp]] = [np.arange(start, stops[0])]
    for stop, following in zip(stops, [*stops[1:], start + count], strict=True):
        point = (int(vertices[stop, 0]), int(vertices[stop, 1]))
        if opened and opened[-1][0] == point:
            parts.append(np.concatenate(pieces))
            pieces = opened.pop()[1]
        else:
            opened.append((point, pieces))
            pieces = []
        pieces.append(np.arange(stop, following))
    return [*parts, np.concatenate(pieces)]


def without_flags(vertices: NDArray[np.int32]) -> NDArray[np.int32]:
    """Columns and rows alone."""
    bare = vertices.copy()
    bare[:, 0] >>= FLAG_BITS
    return bare
