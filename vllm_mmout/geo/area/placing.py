"""Convert an area of interest to the pixels of a raster, across coordinate systems and the antimeridian."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray
from rasterio._err import CPLE_BaseError

from vllm_mmout.errors import InputError, OutsideError
from vllm_mmout.geo.area.outline import box_of, outline, without_jumps
from vllm_mmout.geo.area.placed import PixelPolygon, PlacedArea
from vllm_mmout.geo.raster.bounding_box import box_system, located_grid
from vllm_mmout.geo.raster.pixel_grid import (
    TURN,
    Box,
    BoxSystem,
    clip_polygon,
    overlapping_shifts,
    text,
    transformed,
)
from vllm_mmout.geo.raster.raster import Window

if TYPE_CHECKING:
    from vllm_mmout.geo.area.polygons import Area, Ring
    from vllm_mmout.geo.raster.georeference import Georeference
    from vllm_mmout.geo.raster.ground_points import Affine

_TOLERANCE: Final = 1 / 32
"""Largest distance in pixels between a curved edge and the straight pieces that approximate it. A straight edge of an
area can become a curve in the raster's coordinate system."""
_MOST_POINTS: Final = 4_000_000
"""Largest number of points that a ring may have, including the points that are added along curved edges."""
_TEST_POSITIONS: Final = (0.25, 0.5, 0.75)
"""Positions along an edge of an area where the transformed edge is compared with a straight line. 0 is the start of the
edge, and 1 is its end."""
_MARGIN: Final = 0.05
"""Margin on each side of a raster, as a fraction of its extent. Areas in degrees are clipped to the enlarged extent."""
_HALF: Final = TURN / 2


def placed_area(area: Area, georeference: Georeference | None, size: tuple[int, int], name: str) -> PlacedArea:
    """Convert an area of interest to the pixels of a raster.

    If the area is in another coordinate system, its edges, which are straight there, are divided until their pieces are
    straight on the raster to a fraction of a pixel. An edge that is longer than 180 degrees crosses the antimeridian.

    Args:
        area: the area.
        georeference: georeference of the raster.
        size: (height, width) of the raster, in pixels.
        name: name of the raster in error messages.

    Raises:
        InputError: the raster has no usable georeference, or the area covers the centre of none of its pixels.
        OptionError: the area's coordinate system cannot be used.

    """
    found, system = _placed(area, georeference, size, name)
    if any(found.mask(strip).any() for strip in found.strips()):
        return found
    raise InputError(f"{_area_text(area)} covers the centre of no pixel of {_raster_text(system, name)}", param="aoi")


def window_around(area: Area, georeference: Georeference | None, size: tuple[int, int], name: str) -> Window:
    """Return the window of a raster around all pixels that the outline of an area touches.

    The arguments are those of `placed_area`.

    Raises:
        OutsideError: the area lies outside the raster.
        InputError: the raster has no usable georeference.
        OptionError: the area's coordinate system cannot be used.

    """
    return _placed(outline(area), georeference, size, name)[0].window


def _placed(
    area: Area, georeference: Georeference | None, size: tuple[int, int], name: str
) -> tuple[PlacedArea, BoxSystem]:
    """Convert an area to pixels of a raster. Also return the coordinate systems of the area and the raster.

    Raise OutsideError if the area is outside the raster.
    """
    placed, grid = located_grid(georeference, size, name, "aoi")
    placer = _Placer(box_system(area.crs, placed, grid, name, "aoi"))
    features = tuple(
        tuple(PixelPolygon.of(piece for ring in polygon for piece in placer.pieces(ring)) for polygon in each.polygons)
        for each in area.features
    )
    outer = [ring for polygons in features for polygon in polygons for ring in polygon.rings]
    windows = [window for ring in outer if (window := grid.window_of_pixels((ring[:, 0], ring[:, 1]))) is not None]
    if not windows:
        raise OutsideError(f"{_area_text(area)} lies outside of {_raster_text(placer.system, name)}", param="aoi")
    a, b, _, d, e, _ = grid.transform
    up = 1 if a * e > b * d else -1
    return PlacedArea(area, features, size, _around(windows), up, placer.assumed), placer.system


def _area_text(area: Area) -> str:
    """Return text for error messages: the extent and the coordinate system of an area."""
    boxes = np.array([box_of(polygon[0]) for feature in area.features for polygon in feature.polygons])
    west, south = boxes[:, :2].min(axis=0).tolist()
    east, north = boxes[:, 2:].max(axis=0).tolist()
    system = f" in {area.crs[:60]}" if area.crs else ""
    return f"aoi with the extent {text((west, south, east, north))}{system}"


def _raster_text(system: BoxSystem, name: str) -> str:
    """Return text for error messages: the name and the extent of a raster, in the coordinate system of an area.

    ``system`` is the converter between both coordinate systems.
    """
    return f"{name}, which covers {text(system.extent())} there"


def _around(windows: list[Window]) -> Window:
    row, col = min(window.row for window in windows), min(window.col for window in windows)
    end = max(window.row + window.height for window in windows)
    return Window(row, col, end - row, max(window.col + window.width for window in windows) - col)


@dataclass
class _Placer:
    """Converter of the rings of an area to pixels of a raster."""

    system: BoxSystem
    assumed: tuple[str, ...] = ()
    """A sentence if an edge of the area was assumed to cross the antimeridian, else empty."""

    @cached_property
    def _clip_box(self) -> Box:
        """Box in degrees to which an area of interest is clipped: the raster's extent with a margin on each side."""
        west, south, east, north = self.system.extent()
        wide, high = _MARGIN * (east - west), _MARGIN * (north - south)
        if east - west + 2 * wide >= TURN:
            west, east, wide = -_HALF, _HALF, 0.0
        return west - wide, max(south - high, -90.0), east + wide, min(north + high, 90.0)

    def pieces(self, ring: Ring) -> Iterator[NDArray[np.float64]]:
        """Yield the parts of a ring that are near the raster, converted to (column, row), [n, 2]."""
        system, places = self.system, ring
        if system.geographic:
            places, sentence = without_jumps(ring)
            self.assumed = self.assumed if sentence is None else (sentence,)
        parts = [places]
        if system.systems is not None:
            if system.geographic and not system.raster_geographic:
                parts = list(self._clipped(places))
            parts = [self._warped(part) for part in parts]
        for part in parts:
            shifts = overlapping_shifts(box_of(part), system.grid.extent) if system.raster_geographic else [0.0]
            for shift in shifts:
                yield _pixels(system.grid.transform, part[:, 0] + shift, part[:, 1])

    def _clipped(self, ring: Ring) -> Iterator[Ring]:
        """Clip a ring in degrees to `_clip_box`, a box around the raster, and yield the ring's parts inside the box.

        This is needed for projected rasters, since a projection may be undefined far from the raster.
        """
        for shift in overlapping_shifts(box_of(ring), self._clip_box):
            inner = clip_polygon((ring[:, 0] + shift, ring[:, 1]), self._clip_box)
            if inner is not None:
                corners = np.stack(inner, axis=1)
                yield np.concatenate([corners, corners[:1]])

    def _warped(self, ring: Ring) -> Ring:
        """Transform a ring to the raster's coordinate system. Add points where a straight edge becomes a curve."""
        places = self._transformed(ring)
        if self.system.raster_geographic:
            places[:, 0] = np.unwrap(places[:, 0], period=TURN)
            if abs(places[-1, 0] - places[0, 0]) > _HALF:
                raise InputError(
                    "aoi encloses a pole, which the input's longitudes cannot show; give it in degrees", param="aoi"
                )
        bent = np.ones(len(ring) - 1, np.bool_)
        while bent.any():
            (edges,) = np.nonzero(bent)
            off, middle = self._bend(ring, places, edges)
            long = off > _TOLERANCE
            bent[edges] = long
            if not long.any():
                break
            at = edges[long] + 1
            ring = np.insert(ring, at, (ring[at - 1] + ring[at]) / 2, axis=0)
            places = np.insert(places, at, middle[long], axis=0)
            bent = np.repeat(bent, 1 + bent)
            if len(ring) > _MOST_POINTS:
                raise self._not_shown()
        return places

    def _bend(self, ring: Ring, places: Ring, edges: NDArray[np.intp]) -> tuple[NDArray[np.float64], Ring]:
        """Measure in pixels how far some edges of a ring bend when they are transformed to the raster's system.

        The result is the largest distance of each transformed edge from the straight line between its ends, and the
        transformed midpoints of the edges. ``edges`` are indices of edges of the ring. ``ring`` has the positions
        before the transformation, and ``places`` after it. Edges off the raster get distance 0.
        """
        start, step = ring[edges], ring[edges + 1] - ring[edges]
        first, chord = places[edges], places[edges + 1] - places[edges]
        off = np.zeros(len(edges))
        arcs: list[Ring] = []
        a, b, _, d, e, _ = self.system.grid.transform
        for share in _TEST_POSITIONS:
            arc, straight = self._transformed(start + share * step), first + share * chord
            if self.system.raster_geographic:
                arc[:, 0] += TURN * np.round((straight[:, 0] - arc[:, 0]) / TURN)
            x, y = (arc - straight).T
            off = np.maximum(off, np.hypot(e * x - b * y, a * y - d * x) / abs(a * e - b * d))
            arcs.append(arc)
        corners = np.stack([first, *arcs, places[edges + 1]])
        cols, rows = self.system.grid.pixels((corners[..., 0], corners[..., 1]))
        height, width = self.system.grid.size
        near = (cols.min(axis=0) <= width + off) & (cols.max(axis=0) >= -off)
        near &= (rows.min(axis=0) <= height + off) & (rows.max(axis=0) >= -off)
        if self.system.raster_geographic:  # a turn may bring it onto the raster
            near[:] = True
        return np.where(near, off, 0.0), arcs[1]

    def _transformed(self, ring: Ring) -> Ring:
        if self.system.systems is None:
            return ring
        x, y = ring.T
        if self.system.geographic:
            x = np.where(np.abs(x) > _HALF, x - TURN * np.round(x / TURN), x)
        try:
            places = np.stack(transformed(*self.system.systems, (x, y)), axis=1)
        except CPLE_BaseError as error:
            raise self._not_shown() from error
        if not np.isfinite(places).all():
            raise self._not_shown()
        return places

    @staticmethod
    def _not_shown() -> InputError:
        return InputError(
            "the input's coordinate system cannot show all of aoi; give the part of it near the input", param="aoi"
        )


def _pixels(transform: Affine, x: NDArray[np.float64], y: NDArray[np.float64]) -> Ring:
    """Convert coordinates ``x`` and ``y`` to (column, row), [n, 2], with the same rounding errors as GDAL.

    Masks of an area then equal rasterio's masks. A border often lies exactly on the centres of pixels, where the last
    bit decides.
    """
    a, b, c, d, e, f = transform
    if b == 0 and d == 0:
        cols, rows = -c / a + x * (1 / a), -f / e + y * (1 / e)
    else:
        scale = 1 / (a * e - b * d)
        cols = (b * f - c * e) * scale + x * (e * scale) + y * (-b * scale)
        rows = (c * d - a * f) * scale + x * (-d * scale) + y * (a * scale)
    return np.stack([cols, rows], axis=1)
