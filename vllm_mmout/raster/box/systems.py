"""The coordinate systems of bounding boxes: a raster's own, or any that PROJ knows."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.raster.box.pixel_grid import Area
from vllm_mmout.raster.box.rings import TURN, Box, Points, extent, ring, unwrapped
from vllm_mmout.raster.crs.proj_string import shown
from vllm_mmout.raster.crs.text import proj_crs
from vllm_mmout.raster.epsg import FIRST, LAST, crs_kind
from vllm_mmout.raster.gdal.names import EXTRA
from vllm_mmout.raster.geokeys import epsg_code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_mmout.raster.box.pixel_grid import PixelGrid

_EARTH: Box = (-TURN / 2, -90.0, TURN / 2, 90.0)
_MARGIN = 0.05
"""Part of the raster's extent by which it is widened before a box is cut to it."""
_STEPS = 64
"""Pieces in which an edge is followed for an extent that need not be exact."""


class BoxSystem(Protocol):
    """The coordinate system of a box."""

    @property
    def geographic(self) -> bool:
        """Whether x is a longitude."""

    def areas(self, box: Box) -> Sequence[Area]:
        """The box in the raster's coordinates: several areas where longitudes begin anew in between."""

    def extent(self) -> Box:
        """The raster in this system."""


def box_system(crs: str | None, grid: PixelGrid, name: str) -> BoxSystem:
    """The system of a box for a raster.

    Args:
        crs: what a user calls it; None: the raster's own.
        grid: the raster's pixels.
        name: what to call the raster in an error.

    Raises:
        InputError: the raster has no system that PROJ knows.
        OptionError: PROJ does not know the box's, or pyproj is not installed.

    """
    if crs is None or _same(crs, grid.crs):
        return _Own(grid)
    if grid.crs is None:
        raise InputError(
            f"{name} has no coordinate system, so a bbox in {crs[:60]} cannot be found in it; leave bbox_crs out, for"
            " a bbox in its own coordinates",
            param="bbox_crs",
        )
    try:
        there, own = _of_box(crs), _of_raster(grid.crs, name)
        from pyproj.exceptions import ProjError
    except ImportError as error:
        raise OptionError(
            f"bbox_crs is {crs[:60]}, the input's is {grid.crs[:60]}: to get from one to the other needs pyproj:"
            f" {EXTRA} ({error})",
            param="bbox_crs",
        ) from None
    try:
        return _Other(grid, there, own)
    except ProjError as error:  # one of the two lies nowhere on Earth
        raise InputError(
            f"PROJ knows no way from {crs[:60]} to the coordinate system of {name} ({error}); leave bbox_crs out, for"
            " a bbox in its own coordinates",
            param="bbox_crs",
        ) from error


def _of_box(crs: str) -> Any:
    """What pyproj has for the system of a box."""
    try:
        there = proj_crs(crs)
    except InputError as error:
        raise OptionError(f'bbox_crs must be a coordinate system, as "EPSG:4326": {error}', param="bbox_crs") from error
    if not (there.is_geographic or there.is_projected):
        raise OptionError(
            f'bbox_crs must be a system of a map, as "EPSG:4326", got {shown(crs)}, which is a {there.type_name}',
            param="bbox_crs",
        )
    return there


def _of_raster(crs: str, name: str) -> Any:
    """What pyproj has for the system of a raster."""
    try:
        return proj_crs(crs)
    except InputError as error:
        raise InputError(
            f"{name} has a coordinate system that cannot be used ({error}); leave bbox_crs out, for a bbox in its own"
            " coordinates",
            param="bbox_crs",
        ) from error


class _Own:
    """The raster's own system."""

    def __init__(self, grid: PixelGrid) -> None:
        self._grid = grid
        self.geographic = _is_geographic(grid.crs)

    def areas(self, box: Box) -> Sequence[Area]:
        near = self.extent()
        if self.geographic and max(abs(near[0]), abs(near[2])) <= 2 * TURN:  # else metres, called degrees by mistake
            box = _one_turn(box)
        shifts = _turns(box, near) if self.geographic else [0.0]
        return [Area(partial(ring, _bounded(_moved(box, shift), near)), straight=True) for shift in shifts]

    def extent(self) -> Box:
        return extent(self._grid.border(1))


class _Other:
    """A system that is not the raster's; both as pyproj has them."""

    def __init__(self, grid: PixelGrid, crs: Any, raster_crs: Any) -> None:
        from pyproj import Transformer

        self._grid = grid
        self._transformer = Transformer.from_crs(crs, raster_crs, always_xy=True)
        self.geographic = bool(crs.is_geographic)
        self._raster_geographic = bool(raster_crs.is_geographic)

    def areas(self, box: Box) -> Sequence[Area]:
        box = _one_turn(box) if self.geographic else box
        if self._raster_geographic:
            shifts = _turns(extent(self._border(box, 0.0, _STEPS)), extent(self._grid.border(1)))
            return [Area(partial(self._border, box, shift), straight=False) for shift in shifts]
        boxes = self._near(box) if self.geographic else [box]
        return [Area(partial(self._border, part, 0.0), straight=False) for part in boxes]

    def extent(self) -> Box:
        points = self._transformer.transform(*self._grid.border(_STEPS), direction="INVERSE")
        return extent(unwrapped(points) if self.geographic and np.isfinite(points).all() else points)

    def _border(self, box: Box, shift: float, steps: int) -> Points:
        """A box in the raster's coordinates, and some degrees further."""
        x, y = self._transformer.transform(*ring(box, steps))
        if not (np.isfinite(x).all() and np.isfinite(y).all()):
            raise InputError(
                f"the input's coordinate system cannot show all of bbox {text(box)}; give a smaller one", param="bbox"
            )
        if self._raster_geographic:
            x, y = unwrapped((x, y))
        return x + shift, y

    def _near(self, box: Box) -> list[Box]:
        """Longitudes and latitudes as far as the raster goes, cut at the antimeridian.

        A projection is good for its part of the Earth: the whole world has no image in a UTM zone.
        """
        near = self.extent()
        if not np.isfinite(near).all():  # a corner of the raster is not on Earth, as of a geostationary satellite
            near = _EARTH
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


def text(box: Box) -> str:
    """A box for a message."""
    return f"({', '.join(f'{number:.10g}' for number in box)})"


def _moved(box: Box, shift: float) -> Box:
    return box[0] + shift, box[1], box[2] + shift, box[3]


def _one_turn(box: Box) -> Box:
    """A box of longitudes; of more than one turn it has them all."""
    return box if box[2] - box[0] <= TURN else (_EARTH[0], box[1], _EARTH[2], box[3])


def _bounded(box: Box, other: Box) -> Box:
    """A box that ends at most two sizes of another beyond it: places far off have too few digits to find its pixels."""
    wide, high = 2 * (other[2] - other[0]), 2 * (other[3] - other[1])
    west, east = (min(max(x, other[0] - wide), other[2] + wide) for x in (box[0], box[2]))
    south, north = (min(max(y, other[1] - high), other[3] + high) for y in (box[1], box[3]))
    return west, south, east, north


def _usual(box: Box) -> Box:
    """A box on one side of the antimeridian with longitudes from -180 to 180: a map may end there."""
    return _moved(box, TURN if box[0] < _EARTH[0] else -TURN if box[2] > _EARTH[2] else 0.0)


def _turns(box: Box, other: Box) -> list[float]:
    """By how many degrees to shift a box, in full turns, so that its longitudes meet those of another.

    What is wider than two turns has no longitudes, as metres that are called degrees by mistake: there is no shift.
    """
    if max(box[2] - box[0], other[2] - other[0]) > 2 * TURN:
        return [0.0]
    first = math.ceil((other[0] - box[2]) / TURN)
    last = math.floor((other[2] - box[0]) / TURN)
    return [turn * TURN for turn in range(first, last + 1)]


def _same(one: str, other: str | None) -> bool:
    """Whether two texts name one system, longitude first."""
    if other is None:
        return False
    codes = [4326 if crs.strip().upper() == "OGC:CRS84" else epsg_code(crs) for crs in (one, other)]
    return one.strip() == other.strip() or (codes[0] is not None and codes[0] == codes[1])


def _is_geographic(crs: str | None) -> bool:
    """Whether x is a longitude."""
    code = None if crs is None else epsg_code(crs)
    if code is not None:
        return FIRST <= code <= LAST and crs_kind(code) == "geographic"
    return crs is not None and crs.lstrip().startswith(("GEOGCS[", "GEOGCRS["))
