"""Which pixels of a raster lie in an area: in its own coordinates, and in any system that PROJ knows.

By hand, since GDAL's windows are those of rectangles along the pixels: of a turned raster, or of a box that reaches far
beyond a raster in a curved system, the rectangle around all of the box is much larger than what the two share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray
from rasterio._err import CPLE_BaseError
from rasterio.warp import transform, transform_bounds

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.ground_points import Affine
from vllm_mmout.geo.raster.raster import Window

if TYPE_CHECKING:
    from rasterio.crs import CRS


Box: TypeAlias = tuple[float, float, float, float]
"""(west, south, east, north): x and y of two corners, longitude before latitude whatever a system says."""
Points: TypeAlias = "tuple[NDArray[np.float64], NDArray[np.float64]]"
"""x and y of places."""

STEPS = 4096
"""Pieces in which a curved edge is followed: those of Europe lie within 5 cm of them."""
_ROUNDING = 1e-6
"""Pixels by which a border may be off: so little of a further pixel does not count."""


@dataclass(frozen=True, slots=True)
class PixelGrid:
    """Where the pixels of a raster lie."""

    transform: Affine
    """Of an area that is not 0."""
    size: tuple[int, int]
    """Height and width."""

    @property
    def extent(self) -> Box:
        """The smallest box around the raster, in its coordinates."""
        a, b, c, d, e, f = self.transform
        cols, rows = ring((0.0, 0.0, float(self.size[1]), float(self.size[0])), 1)
        return extent((a * cols + b * rows + c, d * cols + e * rows + f))

    def window(self, border: Points, steps: int = 1) -> Window | None:
        """The window around the pixels that lie in an area with more than their border; None where there are none."""
        height, width = self.size
        points = self._pixels(border)
        inner = _within(points, (0.0, 0.0, float(width), float(height)))
        if inner is None:
            return None
        left, upper, right, lower = extent(inner)
        slack = self._rounding() - _bend(points, steps, (width, height))
        cols, rows = _span(left, right, width, slack), _span(upper, lower, height, slack)
        return None if cols is None or rows is None else Window(rows[0], cols[0], rows[1], cols[1])

    def _pixels(self, points: Points) -> Points:
        """Columns and rows of places, from the corner of the first pixel."""
        a, b, c, d, e, f = self.transform
        x, y = points[0] - c, points[1] - f
        area = a * e - b * d
        return (e * x - b * y) / area, (a * y - d * x) / area

    def _rounding(self) -> float:
        """Pixels by which a border may be off; more where coordinates are so large that they have no more digits."""
        a, b, _, d, e, _ = self.transform
        pixel = abs(a * e - b * d) / max(math.hypot(a, d), math.hypot(b, e))
        return _ROUNDING + 4 * float(np.spacing(max(map(abs, self.extent)))) / pixel


def ring(box: Box, steps: int) -> Points:
    """The border of a box, each edge in so many pieces; the last point is the first."""
    west, south, east, north = box
    along = np.arange(steps) / steps  # from 0 up to 1, which is the next edge's 0
    there = np.concatenate([along, np.ones(steps), 1 - along, np.zeros(steps), [0.0]])
    up = np.concatenate([np.zeros(steps), along, np.ones(steps), 1 - along, [0.0]])
    return west * (1 - there) + east * there, south * (1 - up) + north * up


def extent(points: Points) -> Box:
    """The smallest box around points."""
    x, y = points
    return float(x.min()), float(y.min()), float(x.max()), float(y.max())


def _bend(points: Points, steps: int, size: tuple[int, int]) -> float:
    """How far the edges of a box may lie from the straight pieces between their points, near a rectangle of a size.

    An arc lies off the middle of its chord by an eighth of the second difference of its points.
    """
    places = np.stack(points)
    if steps < 2 or places.shape[1] != 4 * steps + 1:  # a box around a pole has straight edges
        return 0.0
    arcs = np.pad(np.abs(np.diff(places, 2)) / 8, ((0, 0), (1, 1)))
    arcs[:, ::steps] = 0  # corners are no arcs
    off = np.maximum(arcs[:, :-1], arcs[:, 1:])
    low, high = np.minimum(places[:, :-1], places[:, 1:]) - off, np.maximum(places[:, :-1], places[:, 1:]) + off
    touching = ((low <= np.reshape(size, (2, 1))) & (high >= 0)).all(axis=0)
    return float(off[:, touching].max(initial=0.0))


def _within(points: Points, box: Box) -> Points | None:
    """What a box has of the area in a ring (Sutherland and Hodgman 1974); None where that is nothing."""
    places = np.stack(points, axis=1)[:-1]
    for axis, limit, side in ((0, box[0], 1), (0, box[2], -1), (1, box[1], 1), (1, box[3], -1)):
        places = _cut(places, (places[:, axis] - limit) * side)
        if not len(places):
            return None
    return places[:, 0], places[:, 1]


def _cut(places: NDArray[np.float64], inside: NDArray[np.float64]) -> NDArray[np.float64]:
    """The part of a polygon where a number that is linear in the place, given at its corners, is not negative."""
    after, then = np.roll(places, -1, axis=0), np.roll(inside, -1)
    crosses = (inside < 0) != (then < 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (inside / (inside - then))[:, np.newaxis]
        crossings = places + share * (after - places)
    both = np.stack([places, crossings], axis=1).reshape(-1, 2)
    keep = np.stack([inside >= 0, crosses], axis=1).ravel()
    kept: NDArray[np.float64] = both[keep]
    return kept


def _span(low: float, high: float, length: int, slack: float) -> tuple[int, int] | None:
    """First and number of the pixels of an axis between two places; None where that is its very end, or beyond."""
    if high <= _ROUNDING or low >= length - _ROUNDING:
        return None
    first, end = max(math.floor(low + slack), 0), min(math.ceil(high - slack), length)
    if end <= first:  # thinner than the rounding
        first = min(math.floor((low + high) / 2), length - 1)
        end = first + 1
    return first, end - first


TURN = 360.0
"""Degrees after which longitudes repeat."""
_EARTH: Box = (-TURN / 2, -90.0, TURN / 2, 90.0)
_MARGIN = 0.05
"""Part of the raster's extent by which it is widened before a box is cut to it."""


@dataclass(frozen=True, slots=True)
class BoxSystem:
    """The coordinate system of boxes, and that of a raster."""

    grid: PixelGrid
    """The raster's pixels."""
    systems: tuple[CRS, CRS] | None
    """That of the boxes and that of the raster; None where they are one."""
    geographic: bool
    """Whether x of a box is a longitude."""
    raster_geographic: bool
    """Whether x of the raster is one."""

    def windows(self, box: Box, steps: int = STEPS) -> list[Window]:
        """The pixels of the raster that a box has: several windows where longitudes begin anew in between."""
        near = self.grid.extent
        if self.geographic and (self.systems is not None or max(abs(near[0]), abs(near[2])) <= 2 * TURN):
            # Else these are metres, called degrees by mistake. Of more than one turn it has all longitudes.
            box = box if box[2] - box[0] <= TURN else (_EARTH[0], box[1], _EARTH[2], box[3])
        borders = [self._border(part, steps) for part in self._parts(box)]
        if self.raster_geographic:
            ((x, y),) = borders
            borders = [(x + shift, y) for shift in _turns(extent((x, y)), near)]
        if self.systems is None:
            borders = [_bounded(border, near) for border in borders]
        found = [self.grid.window(border, 1 if self.systems is None else steps) for border in borders]
        return [window for window in found if window is not None]

    def extent(self) -> Box:
        """The raster in the system of the boxes; all of the Earth where that cannot be told."""
        if self.systems is None:
            return self.grid.extent
        there, own = self.systems
        try:
            west, south, east, north = transform_bounds(own, there, *self.grid.extent, densify_pts=64)
        except CPLE_BaseError:  # a corner is not on Earth, as of a geostationary satellite
            return _EARTH
        found = (west, south, east + TURN * (self.geographic and west > east), north)
        return found if np.isfinite(found).all() else _EARTH

    def _border(self, box: Box, steps: int) -> Points:
        if self.systems is None:
            return ring(box, 1)
        try:
            x, y = transformed(*self.systems, ring(box, steps))
        except CPLE_BaseError as error:
            raise InputError(
                f"the input's coordinate system cannot show all of bbox {text(box)}; give a smaller one", param="bbox"
            ) from error
        return _unwrapped((x, y)) if self.raster_geographic else (x, y)

    def _parts(self, box: Box) -> list[Box]:
        """A box of longitudes and latitudes as far as a raster on a map goes, cut at the antimeridian; any other whole.

        A projection is good for its part of the Earth: the whole world has no image in a UTM zone.
        """
        if not self.geographic or self.raster_geographic:
            return [box]
        near = self.extent()
        wide, high = _MARGIN * (near[2] - near[0]), _MARGIN * (near[3] - near[1])
        west, south, east, north = near[0] - wide, near[1] - high, near[2] + wide, near[3] + high
        if east - west >= TURN:
            west, east = _EARTH[0], _EARTH[2]
        south, north = max(box[1], south, _EARTH[1]), min(box[3], north, _EARTH[3])
        parts: list[Box] = []
        for shift in _turns(box, (west, south, east, north)):
            left, right = max(box[0] + shift, west), min(box[2] + shift, east)
            cuts = [left, *(cut for cut in (_EARTH[0], _EARTH[2]) if left < cut < right), right]
            parts += [_usual((a, south, b, north)) for a, b in pairwise(cuts) if a < b and south < north]
        return parts


def transformed(crs: CRS, other: CRS, points: Points) -> Points:
    """Places in another system, longitude before latitude."""
    x, y = transform(crs, other, *points)
    return np.array(x), np.array(y)


def text(box: Box) -> str:
    """A box for a message."""
    return f"({', '.join(f'{number:.10g}' for number in box)})"


def _bounded(points: Points, other: Box) -> Points:
    """The border of a box that ends at most two sizes of another beyond it: places far off have too few digits."""
    wide, high = 2 * (other[2] - other[0]), 2 * (other[3] - other[1])
    x, y = points
    return x.clip(other[0] - wide, other[2] + wide), y.clip(other[1] - high, other[3] + high)


def _usual(box: Box) -> Box:
    """A box on one side of the antimeridian with longitudes from -180 to 180: a map may end there."""
    shift = TURN if box[0] < _EARTH[0] else -TURN if box[2] > _EARTH[2] else 0.0
    return box[0] + shift, box[1], box[2] + shift, box[3]


def _turns(box: Box, other: Box) -> list[float]:
    """By how many degrees to shift a box, in full turns, so that its longitudes meet those of another.

    What is wider than two turns has no longitudes, as metres that are called degrees by mistake: there is no shift.
    """
    if max(box[2] - box[0], other[2] - other[0]) > 2 * TURN:
        return [0.0]
    first = math.ceil((other[0] - box[2]) / TURN)
    last = math.floor((other[2] - box[0]) / TURN)
    return [turn * TURN for turn in range(first, last + 1)]


def _unwrapped(points: Points) -> Points:
    """A ring of longitudes and latitudes without jumps by a turn; all of a hemisphere's end for one around a pole."""
    x: NDArray[np.float64] = np.asarray(np.unwrap(points[0], period=TURN), np.float64)
    y = points[1]
    if abs(x[-1] - x[0]) < TURN / 2:
        return x, y
    south, north = (float(y.min()), 90.0) if y.mean() > 0 else (-90.0, float(y.max()))
    return ring((-TURN / 2, south, TURN / 2, north), 1)
