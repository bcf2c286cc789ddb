"""Define finished polygons, the tables of unfinished polygons, and the conversion of corners to coordinates."""

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
    """Batch of polygons. Each polygon is a region of connected pixels of the same class.

    A polygon with many rings may be spread over several batches.
    """

    classes: NDArray[np.int32]
    """Class of each polygon."""
    pixels: NDArray[np.int64]
    """Number of pixels in each whole polygon, even if some of its rings are in another batch."""
    areas: NDArray[np.float64]
    """Area of each whole polygon, as the sum of its pixels' areas. Other batches may hold some rings of the polygon."""
    rings: NDArray[np.int64]
    """Number of rings of each polygon in this batch."""
    counts: NDArray[np.int64]
    """Number of corners of each ring. A polygon's first ring is its exterior and runs counterclockwise as seen on a
    screen. The others are holes and run clockwise."""
    vertices: NDArray[np.int32]
    """Column and row of each corner, int32 [n, 2], ring by ring. The two lowest bits of the column hold flags, which
    `without_flags` removes."""
    continued: bool
    """True if the first polygon of this batch has other rings in the previous batch."""
    continues: bool
    """True if the last polygon of this batch has more rings in the next batch."""

    def facts(self) -> Iterator[tuple[int, int, float, int]]:
        """Yield (class, number of pixels, area, number of rings) for each polygon in this batch.

        Pixels and area are totals of the whole polygon. Rings in other batches are not counted.
        """
        return zip(self.classes.tolist(), self.pixels.tolist(), self.areas.tolist(), self.rings.tolist(), strict=True)


@dataclass(frozen=True, eq=False)
class _Columns:
    """Base class of tables stored by column: each field is an array with one item per row."""

    def select(self, which: NDArray[np.bool_] | NDArray[np.intp]) -> Self:
        return type(self)(*(getattr(self, field.name)[which] for field in fields(self)))

    def followed_by(self, other: Self) -> Self:
        """Return a new table with the rows of this table followed by the rows of ``other``."""
        names = [field.name for field in fields(self)]
        return type(self)(*(np.concatenate([getattr(self, name), getattr(other, name)]) for name in names))


@dataclass(frozen=True, eq=False)
class OpenBorders(_Columns):
    """Table of the polygon borders that are not closed yet, since they continue below the rows traced so far."""

    heads: NDArray[np.int32]
    """Column where each border enters the traced rows from below. The traced part of the border begins in this
    column."""
    tails: NDArray[np.int32]
    """Column where each border leaves the traced rows, going down. The traced part of the border ends in this
    column."""
    first: NDArray[np.intp]
    """Identifier of each border's first segment in `BorderSegments`, the store of border segments."""
    last: NDArray[np.intp]
    """Identifier of each border's last segment in `BorderSegments`, the store of border segments."""
    region: NDArray[np.intp]
    """Index of the region that each border belongs to."""


@dataclass(frozen=True, eq=False)
class Regions(_Columns):
    """Table of regions that are not finished yet, with their class, number of pixels and area."""

    classes: NDArray[np.int32]
    """Class of each region."""
    pixels: NDArray[np.int64]
    """Number of pixels of each region."""
    areas: NDArray[np.float64]
    """Area of each region, as the sum of its pixels' areas."""


@dataclass(frozen=True, eq=False)
class Rings(_Columns):
    """Table of the rings (closed borders) of regions that are not finished yet."""

    region: NDArray[np.intp]
    """Index of the region that each ring belongs to."""
    address: NDArray[np.int64]
    """Position of each ring's first corner in the store `WaitingCorners`. If the corner is not stored yet, the value is
    -1 - i, where i is the corner's index in the array of new corners."""
    count: NDArray[np.int64]
    """Number of corners of each ring."""
    hole: NDArray[np.bool_]
    """True for each ring around a hole, False for each exterior ring."""

    def with_regions(self, region: NDArray[np.intp]) -> Rings:
        """Return a copy of this table with renumbered regions. ``region[i]`` is the new index of region i."""
        return replace(self, region=region[self.region])


def doubled_areas(vertices: NDArray[np.int32], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return twice the area of each ring in pixels. The area is negative if the ring is clockwise on a screen."""
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
    """Split each ring that passes twice through a point into several rings that touch at this point.

    The standard Simple Features requires such rings. The region is on two opposite sides of the point, and the outside
    is between the two passes of the ring. Therefore the parts never cross, they nest.

    Returns:
        Vertices and counts of the new rings, and for each the index of the original ring.

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
    indices: list[NDArray[np.intp]] = []
    sizes: list[int] = []
    origins: list[int] = []
    rings_to_cut = np.unique(ring[twice])
    last = 0
    for number in rings_to_cut.tolist():
        sizes += counts[last:number].tolist()
        origins += range(last, number)
        indices.append(np.arange(starts[last], starts[number]))
        for part in _cut(vertices, int(starts[number]), int(counts[number]), twice):
            indices.append(part)
            sizes.append(len(part))
            origins.append(number)
        last = number + 1
    sizes += counts[last:].tolist()
    origins += range(last, len(counts))
    indices.append(np.arange(len(vertices) - int(counts[last:].sum()), len(vertices)))
    return vertices[np.concatenate(indices)], np.array(sizes, np.int64), np.array(origins, np.intp)


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
    """Return a copy of corners (column, row), [n, 2], without the flags in the low bits of the column numbers."""
    bare = vertices.copy()
    bare[:, 0] >>= FLAG_BITS
    return bare


PIXEL_TRANSFORM: Affine = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
"""Identity transform, for rasters without a georeference: the coordinates are columns and rows."""
_COMMA, _OPEN, _CLOSE = b",[]"


class Lattice:
    """Converter of pixel corners (column, row) of a raster to coordinates, as numbers or as JSON text."""

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
        """Close rings by repeating the first corner of each ring at its end.

        Return the column and row of each corner [n, 2], and the index of the first corner of each ring, followed by n.
        Exteriors run counterclockwise in coordinates.
        """
        starts = np.cumsum(counts) - counts
        indices = ranges(starts, counts + 1)
        bounds = np.append(0, np.cumsum(counts + 1))
        indices[bounds[1:] - 1] = starts
        if self._turned:  # rings that are counterclockwise on a screen are clockwise in coordinates: reverse them
            indices = indices[np.repeat(bounds[1:] - 1 + bounds[:-1], counts + 1) - np.arange(len(indices))]
        rows = vertices[indices]
        rows[:, 0] >>= FLAG_BITS
        return rows, bounds

    def points(self, rows: NDArray[np.int32]) -> NDArray[np.float64]:
        """Convert corners given as (column, row), int32 [n, 2], to coordinates, float64 [n, 2]."""
        a, b, c, d, e, f = self._transform
        cols, lines = rows[:, 0].astype(np.float64), rows[:, 1].astype(np.float64)
        if self._tables is not None:
            return np.stack([a * cols + c, e * lines + f], axis=1)
        return np.stack([a * cols + b * lines + c, d * cols + e * lines + f], axis=1)

    def text(
        self, rows: NDArray[np.int32], begins: NDArray[np.uint8], ends: NDArray[np.bool_]
    ) -> tuple[bytes, NDArray[np.int64]]:
        """Format polygon corners as GeoJSON coordinates. Return the text, and the offset of each corner in the text.

        The length of the text follows the offsets of the corners.
        ``begins`` is 1 for the first corner of a polygon's first ring, 2 for the first corner of another ring, else 0.
        ``ends`` is True for the last corner of a ring.
        """
        x, y = self._numbers(rows)
        width = x.shape[1]
        fields = np.zeros((len(rows), width + y.shape[1] + 6), np.uint8)
        fields[:, 0] = np.where(begins == 2, _COMMA, 0)
        fields[:, 1] = np.where(begins > 0, _OPEN, 0)
        fields[:, 2] = _OPEN
        fields[:, 3 : 3 + width] = x
        fields[:, 3 + width] = _COMMA
        fields[:, 4 + width : -2] = y
        fields[:, -2] = _CLOSE
        fields[:, -1] = np.where(ends, _CLOSE, _COMMA)
        used = fields != 0
        return fields[used].tobytes(), np.append(0, np.cumsum(used.sum(axis=1)))

    def _numbers(self, rows: NDArray[np.int32]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Format the x and y coordinates of polygon corners as text. Return two arrays of ASCII codes.

        Each array is uint8 [n, length], with zeros after shorter texts.
        """
        if self._tables is None:
            points = self.points(rows)
            return _texts(points[:, 0]), _texts(points[:, 1])
        return self._tables[0][rows[:, 0]], self._tables[1][rows[:, 1]]


def _texts(numbers: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Format each number as the shortest text that parses to the same number.

    Return the texts as uint8 [n, longest], padded with zero bytes.
    """
    texts = np.array([repr(number).removesuffix(".0") for number in numbers.tolist()], np.bytes_)
    return texts.view(np.uint8).reshape(len(numbers), -1)
