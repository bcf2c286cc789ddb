"""Polygons and their rings: those that are whole, what tracing keeps of those that are not, and their coordinates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.geo.raster.ground_points import Affine
from vllm_mmout.geo.vectors.chains import ranges
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


@dataclass(frozen=True, eq=False)
class _Columns:
    """What is known of some things, in arrays of one length."""

    def some(self, which: NDArray[np.bool_] | NDArray[np.intp]) -> Self:
        """Those of them that are chosen."""
        return type(self)(*(getattr(self, each.name)[which] for each in fields(self)))

    def and_(self, other: Self) -> Self:
        """These and others."""
        names = [each.name for each in fields(self)]
        return type(self)(*(np.concatenate([getattr(self, name), getattr(other, name)]) for name in names))


@dataclass(frozen=True, eq=False)
class OpenBorders(_Columns):
    """Borders that cross the lower edge of what was traced, with their ends there."""

    heads: NDArray[np.int32]
    """Column in which each comes up to its beginning."""
    tails: NDArray[np.int32]
    first: NDArray[np.intp]
    """Its first segment."""
    last: NDArray[np.intp]
    region: NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Regions(_Columns):
    """What is known of regions."""

    classes: NDArray[np.int32]
    pixels: NDArray[np.int64]
    areas: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Rings(_Columns):
    """Closed borders."""

    region: NDArray[np.intp]
    address: NDArray[np.int64]
    """In the spool; below 0: -1 - the place among the corners at hand."""
    count: NDArray[np.int64]
    hole: NDArray[np.bool_]

    def of(self, region: NDArray[np.intp]) -> Rings:
        """The same with the new number of each region."""
        return replace(self, region=region[self.region])


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


PIXEL_TRANSFORM: Affine = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
"""Columns and rows themselves, for a raster that lies nowhere."""
_COMMA, _OPEN, _CLOSE = b",[]"


class Lattice:
    """The corners of a raster's pixels."""

    def __init__(self, transform: Affine, size: tuple[int, int]) -> None:
        a, b, c, d, e, f = self._transform = transform
        self._turned = a * e - b * d > 0
        self._tables: tuple[NDArray[np.uint8], NDArray[np.uint8]] | None = None
        if b == d == 0:
            x, y = a * np.arange(size[1] + 1) + c, e * np.arange(size[0] + 1) + f
            self._tables = _texts(x), _texts(y)

    def closed(
        self, vertices: NDArray[np.int32], counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Columns and rows [n, 2] of rings that end where they begin; where each begins, with their number at the end.

        Exteriors run counterclockwise in coordinates.
        """
        starts = np.cumsum(counts) - counts
        places = ranges(starts, counts + 1)
        bounds = np.append(0, np.cumsum(counts + 1))
        places[bounds[1:] - 1] = starts
        if self._turned:  # counterclockwise as a picture is seen is clockwise in coordinates
            places = places[np.repeat(bounds[1:] - 1 + bounds[:-1], counts + 1) - np.arange(len(places))]
        rows = vertices[places]
        rows[:, 0] >>= FLAG_BITS
        return rows, bounds

    def points(self, rows: NDArray[np.int32]) -> NDArray[np.float64]:
        """The coordinates [n, 2] of columns and rows."""
        a, b, c, d, e, f = self._transform
        cols, lines = rows[:, 0].astype(np.float64), rows[:, 1].astype(np.float64)
        if self._tables is not None:
            return np.stack([a * cols + c, e * lines + f], axis=1)
        return np.stack([a * cols + b * lines + c, d * cols + e * lines + f], axis=1)

    def text(
        self, rows: NDArray[np.int32], begins: NDArray[np.uint8], ends: NDArray[np.bool_]
    ) -> tuple[bytes, NDArray[np.int64]]:
        """Coordinates as JSON, with brackets and commas, and where each corner begins, with the length at the end.

        A ring ``begins`` with a corner as the first of a polygon (1) or as another (2), and ``ends`` with it.
        """
        x, y = self._numbers(rows)
        wide = x.shape[1]
        fields = np.zeros((len(rows), wide + y.shape[1] + 6), np.uint8)
        fields[:, 0] = np.where(begins == 2, _COMMA, 0)
        fields[:, 1] = np.where(begins > 0, _OPEN, 0)
        fields[:, 2] = _OPEN
        fields[:, 3 : 3 + wide] = x
        fields[:, 3 + wide] = _COMMA
        fields[:, 4 + wide : -2] = y
        fields[:, -2] = _CLOSE
        fields[:, -1] = np.where(ends, _CLOSE, _COMMA)
        there = fields != 0
        return fields[there].tobytes(), np.append(0, np.cumsum(there.sum(axis=1)))

    def _numbers(self, rows: NDArray[np.int32]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """The text of the two coordinates of each corner, a row each, filled up with 0."""
        if self._tables is None:
            points = self.points(rows)
            return _texts(points[:, 0]), _texts(points[:, 1])
        return self._tables[0][rows[:, 0]], self._tables[1][rows[:, 1]]


def _texts(numbers: NDArray[np.floating]) -> NDArray[np.uint8]:
    """The shortest text of each number that gives it back, uint8 [n, longest], filled up with 0."""
    texts = np.array([repr(number).removesuffix(".0") for number in numbers.tolist()], np.bytes_)
    return texts.view(np.uint8).reshape(len(numbers), -1)
