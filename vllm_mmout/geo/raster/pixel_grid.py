"""Find the pixels of a raster inside a box, in the raster's coordinates or in any system that PROJ knows.

GDAL's windows are not used, since they enclose the whole box in pixel coordinates. For a rotated raster, or a box that
extends far beyond a raster in a curved system, that window is much larger than the part that box and raster share.
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
"""Box (west, south, east, north) in coordinates. x is always the easting or longitude, even if the coordinate system
defines another axis order."""
Points: TypeAlias = "tuple[NDArray[np.float64], NDArray[np.float64]]"
"""x and y of points."""

STEPS = 4096
"""Number of straight pieces that approximate each curved edge of a box. For a box around Europe the error is below 5
cm."""
_ROUNDING = 1e-6
"""Smallest overlap of a box and a pixel that is not a rounding error, as a fraction of the pixel's side."""


@dataclass(frozen=True, slots=True)
class PixelGrid:
    """Position and size of a raster's pixel grid."""

    transform: Affine
    """Transform of pixels to coordinates. The area of a pixel must not be 0."""
    size: tuple[int, int]
    """Height and width of the raster, in pixels."""

    @property
    def extent(self) -> Box:
        """Smallest box around the raster, in the raster's coordinates."""
        a, b, c, d, e, f = self.transform
        cols, rows = ring((0.0, 0.0, float(self.size[1]), float(self.size[0])), 1)
        return extent((a * cols + b * rows + c, d * cols + e * rows + f))

    def window(self, border: Points, steps: int = 1) -> Window | None:
        """Return the window around the pixels inside the closed ring ``border``, or None if no pixel is inside.

        Args:
            border: points of the ring, in the raster's coordinates.
            steps: number of points on each edge of the ring.

        """
        return self.window_of_pixels(self.pixels(border), steps)

    def window_of_pixels(self, points: Points, steps: int = 1) -> Window | None:
        """Return the window that encloses the pixels inside a ring, whose points are given as columns and rows.

        ``steps`` is the number of points on each edge of the ring. The result is None if the ring covers no pixel.
        """
        height, width = self.size
        inner = clip_polygon(points, (0.0, 0.0, float(width), float(height)))
        if inner is None:
            return None
        left, upper, right, lower = extent(inner)
        slack = self._rounding() - _edge_deviation(points, steps, (width, height))
        cols, rows = _span(left, right, width, slack), _span(upper, lower, height, slack)
        return None if cols is None or rows is None else Window(rows[0], cols[0], rows[1], cols[1])

    def pixels(self, points: Points) -> Points:
        """Convert coordinates of points to fractional columns and rows, counted from the corner of the first pixel."""
        a, b, c, d, e, f = self.transform
        x, y = points[0] - c, points[1] - f
        area = a * e - b * d
        return (e * x - b * y) / area, (a * y - d * x) / area

    def _rounding(self) -> float:
        """Return the tolerance, in pixels, for rounding errors of positions. Large coordinates increase it."""
        a, b, _, d, e, _ = self.transform
        pixel = abs(a * e - b * d) / max(math.hypot(a, d), math.hypot(b, e))
        return _ROUNDING + 4 * float(np.spacing(max(map(abs, self.extent)))) / pixel


def ring(box: Box, steps: int) -> Points:
    """Return the border of a box as a closed ring, each edge divided into ``steps`` pieces."""
    west, south, east, north = box
    along = np.arange(steps) / steps  # from 0, without 1, which begins the next edge
    there = np.concatenate([along, np.ones(steps), 1 - along, np.zeros(steps), [0.0]])
    up = np.concatenate([np.zeros(steps), along, np.ones(steps), 1 - along, [0.0]])
    return west * (1 - there) + east * there, south * (1 - up) + north * up


def extent(points: Points) -> Box:
    """Return the smallest box around points."""
    x, y = points
    return float(x.min()), float(y.min()), float(x.max()), float(y.max())


def _edge_deviation(points: Points, steps: int, size: tuple[int, int]) -> float:
    """Return how far, in pixels, a ring's curved edges deviate from the straight lines between the ring's ``points``.

    Only pieces that touch the raster of ``size`` (width, height) count. The distance of an arc from the middle of its
    chord is an eighth of the second difference of its points.
    """
    places = np.stack(points)
    if steps < 2 or places.shape[1] != 4 * steps + 1:  # a box around a pole has straight edges
        return 0.0
    arcs = np.pad(np.abs(np.diff(places, 2)) / 8, ((0, 0), (1, 1)))
    arcs[:, ::steps] = 0  # not at corners
    off = np.maximum(arcs[:, :-1], arcs[:, 1:])
    low, high = np.minimum(places[:, :-1], places[:, 1:]) - off, np.maximum(places[:, :-1], places[:, 1:]) + off
    touching = ((low <= np.reshape(size, (2, 1))) & (high >= 0)).all(axis=0)
    return float(off[:, touching].max(initial=0.0))


def clip_polygon(points: Points, box: Box) -> Points | None:
    """Clip a polygon to a box (Sutherland and Hodgman 1974). Return None if nothing of the polygon is left."""
    places = np.stack(points, axis=1)[:-1]
    for axis, limit, side in ((0, box[0], 1), (0, box[2], -1), (1, box[1], 1), (1, box[3], -1)):
        places = _cut_polygon(places, (places[:, axis] - limit) * side)
        if not len(places):
            return None
    return places[:, 0], places[:, 1]


def _cut_polygon(corners: NDArray[np.float64], distances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cut a polygon along a straight line. Return the corners of the part on the line's positive side.

    Args:
        corners: corners of the polygon, [n, 2].
        distances: signed distance of each corner from the line, [n], not negative on the side that is kept.

    """
    after, then = np.roll(corners, -1, axis=0), np.roll(distances, -1)
    crosses = (distances < 0) != (then < 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (distances / (distances - then))[:, np.newaxis]
        crossings = corners + share * (after - corners)
    both = np.stack([corners, crossings], axis=1).reshape(-1, 2)
    keep = np.stack([distances >= 0, crosses], axis=1).ravel()
    kept: NDArray[np.float64] = both[keep]
    return kept


def _span(low: float, high: float, length: int, tolerance: float) -> tuple[int, int] | None:
    """Return the pixels between two positions on an axis, as (first, count). Return None if all are off the axis.

    The axis has ``length`` pixels. A pixel that is covered by less than ``tolerance`` does not count.
    """
    if high <= _ROUNDING or low >= length - _ROUNDING:
        return None
    first, end = max(math.floor(low + tolerance), 0), min(math.ceil(high - tolerance), length)
    if end <= first:  # thinner than the tolerance
        first = min(math.floor((low + high) / 2), length - 1)
        end = first + 1
    return first, end - first


TURN = 360.0
"""Degrees after which longitudes repeat."""
_EARTH: Box = (-TURN / 2, -90.0, TURN / 2, 90.0)
_MARGIN = 0.05
"""Margin on each side of a raster's extent, as a fraction of the extent's width or height. Geographic boxes are clipped
to the extent with this margin."""


@dataclass(frozen=True, slots=True)
class BoxSystem:
    """Converter from bounding boxes in a coordinate system to windows of a raster in another coordinate system."""

    grid: PixelGrid
    """Transform and size of the raster."""
    systems: tuple[CRS, CRS] | None
    """Coordinate systems of the converted boxes and of the raster, in this order. None if both are equal."""
    geographic: bool
    """Whether the x coordinates of the bounding boxes to convert are longitudes."""
    raster_geographic: bool
    """Whether the x coordinates of the raster are longitudes."""

    def windows(self, box: Box, steps: int = STEPS) -> list[Window]:
        """Return the raster windows that a bounding box covers. Each edge of the box is split into ``steps`` pieces.

        There are several windows if longitudes wrap around inside the box, as at the antimeridian of a world map.
        """
        near = self.grid.extent
        if self.geographic and (self.systems is not None or max(abs(near[0]), abs(near[2])) <= 2 * TURN):
            # Larger numbers are metres, called degrees by mistake. A box of more than a turn has all longitudes.
            box = box if box[2] - box[0] <= TURN else (_EARTH[0], box[1], _EARTH[2], box[3])
        borders = [self._border(part, steps) for part in self._split_box(box)]
        if self.raster_geographic:
            ((x, y),) = borders
            borders = [(x + shift, y) for shift in overlapping_shifts(extent((x, y)), near)]
        if self.systems is None:
            borders = [_bounded(border, near) for border in borders]
        windows = [self.grid.window(border, 1 if self.systems is None else steps) for border in borders]
        return [window for window in windows if window is not None]

    def extent(self) -> Box:
        """Return the raster's extent in the CRS of the boxes. Return the whole Earth if PROJ cannot convert it."""
        if self.systems is None:
            return self.grid.extent
        there, own = self.systems
        try:
            west, south, east, north = transform_bounds(own, there, *self.grid.extent, densify_pts=64)
        except CPLE_BaseError:  # a corner is off the Earth, as in geostationary images
            return _EARTH
        box = (west, south, east + TURN * (self.geographic and west > east), north)
        return box if np.isfinite(box).all() else _EARTH

    def _border(self, box: Box, steps: int) -> Points:
        if self.systems is None:
            return ring(box, 1)
        try:
            x, y = transformed(*self.systems, ring(box, steps))
        except CPLE_BaseError as error:
            raise InputError(
                f"the input's coordinate system cannot show all of bbox {text(box)}; give a smaller box", param="bbox"
            ) from error
        return _unwrapped((x, y)) if self.raster_geographic else (x, y)

    def _split_box(self, box: Box) -> list[Box]:
        """Clip a geographic box to the extent of a projected raster and split it at the antimeridian.

        Any other box is returned as is. A projection is valid only for its part of the Earth; for example, the whole
        world cannot be shown in a UTM zone.
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
        for shift in overlapping_shifts(box, (west, south, east, north)):
            left, right = max(box[0] + shift, west), min(box[2] + shift, east)
            cuts = [left, *(cut for cut in (_EARTH[0], _EARTH[2]) if left < cut < right), right]
            parts += [_in_usual_range((a, south, b, north)) for a, b in pairwise(cuts) if a < b and south < north]
        return parts


def transformed(crs: CRS, other: CRS, points: Points) -> Points:
    """Transform points from the system ``crs`` to the system ``other``. Longitude comes before latitude in both."""
    x, y = transform(crs, other, *points)
    return np.array(x), np.array(y)


def text(box: Box) -> str:
    """Format a box as text for an error message."""
    return f"({', '.join(f'{number:.10g}' for number in box)})"


def _bounded(points: Points, other: Box) -> Points:
    """Clip points to the box ``other`` enlarged fivefold. Coordinates far outside this box would lose precision."""
    wide, high = 2 * (other[2] - other[0]), 2 * (other[3] - other[1])
    x, y = points
    return x.clip(other[0] - wide, other[2] + wide), y.clip(other[1] - high, other[3] + high)


def _in_usual_range(box: Box) -> Box:
    """Shift a box by 360 degrees if its longitudes are outside -180 to 180. The box must not cross the antimeridian."""
    shift = TURN if box[0] < _EARTH[0] else -TURN if box[2] > _EARTH[2] else 0.0
    return box[0] + shift, box[1], box[2] + shift, box[3]


def overlapping_shifts(box: Box, other: Box) -> list[float]:
    """Return all shifts of a box, in multiples of 360 degrees, that make its longitudes overlap the box ``other``.

    A box wider than two turns is assumed to be in metres, called degrees by mistake, and is not shifted.
    """
    if max(box[2] - box[0], other[2] - other[0]) > 2 * TURN:
        return [0.0]
    first = math.ceil((other[0] - box[2]) / TURN)
    last = math.floor((other[2] - box[0]) / TURN)
    return [turn * TURN for turn in range(first, last + 1)]


def _unwrapped(points: Points) -> Points:
    """Remove the jumps of 360 degrees from the longitudes of a closed ring.

    A ring around a pole becomes the box of all longitudes between the ring and the pole.
    """
    x: NDArray[np.float64] = np.asarray(np.unwrap(points[0], period=TURN), np.float64)
    y = points[1]
    if abs(x[-1] - x[0]) < TURN / 2:
        return x, y
    south, north = (float(y.min()), 90.0) if y.mean() > 0 else (-90.0, float(y.max()))
    return ring((-TURN / 2, south, TURN / 2, north), 1)
