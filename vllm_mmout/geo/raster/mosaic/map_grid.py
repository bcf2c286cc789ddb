"""`MapGrid`, the grid of a map that is made of several rasters, and `PlacedRaster`, the place of one of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rasterio._err import CPLE_BaseError

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.bounding_box import window_of_box
from vllm_mmout.geo.raster.crs.text import rasterio_crs, same_system
from vllm_mmout.geo.raster.georeference import Georeference
from vllm_mmout.geo.raster.pixel_grid import Box, PixelGrid, Points, extent, ring, transformed
from vllm_mmout.geo.raster.raster import Window

_STEPS = 256
"""Number of straight pieces that approximate each edge of a raster in another coordinate system."""
_ROUNDING = 1e-3
"""Tolerance of edges in pixels of the map. A pixel that a raster covers by less is not added."""
_UNPLACED = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
"""Transform in place of None, which `PlacedRaster` refuses."""


@dataclass(frozen=True, slots=True)
class PlacedRaster:
    """The name, the place and the size of a raster that goes onto a map.

    Raises:
        InputError: the raster has no coordinate system, or its pixels have no transform or no area.

    """

    name: str
    """Name of the raster in messages."""
    georeference: Georeference | None
    size: tuple[int, int]
    """Height and width, in pixels."""

    def __post_init__(self) -> None:
        place = self.georeference
        if place is None or place.transform is None or place.crs is None:
            raise InputError(
                f"{self.name} has {_what_lacks(place)}, so its place on the map is unknown; georeference it first, as"
                " with gdalwarp or gdal_translate -a_srs -a_ullr"
            )
        a, b, _, d, e, _ = place.transform
        if a * e == b * d:
            raise InputError(f"{self.name} has pixels without an area, its transform is {place.transform}; correct it")

    @property
    def place(self) -> Georeference:
        """The georeference, which was checked when the object was created."""
        return self.georeference or Georeference()

    def border(self) -> Points:
        """Return points on the border, a closed ring in the raster's coordinates."""
        cols, rows = ring((0.0, 0.0, float(self.size[1]), float(self.size[0])), _STEPS)
        a, b, c, d, e, f = self.place.transform or _UNPLACED
        return a * cols + b * rows + c, d * cols + e * rows + f


def _what_lacks(place: Georeference | None) -> str:
    """Describe, for a message, the missing parts of the place of a raster."""
    if place is None or place.transform is not None:
        return "no coordinate system" if place is None else place.why_no_crs
    if place.gcps or place.rpcs:
        return f"{'ground control points' if place.gcps else 'RPCs'} but no transform"
    return "no coordinate system" if place.crs is None else "no transform"


@dataclass(frozen=True, slots=True)
class MapGrid:
    """The grid of a map: its coordinate system, its transform and its size."""

    georeference: Georeference
    size: tuple[int, int]
    """Height and width, in pixels."""

    @classmethod
    def of(cls, raster: PlacedRaster) -> MapGrid:
        """Return the grid of a raster, without its ground control points and RPCs."""
        place = raster.place
        plain = Georeference(crs=place.crs, transform=place.transform, pixel_is_point=place.pixel_is_point)
        return cls(plain, raster.size)

    @classmethod
    def of_system(cls, crs: str, resolution: float) -> MapGrid:
        """Return an empty grid in a coordinate system, whose pixel edges are multiples of ``resolution``."""
        return cls(Georeference(crs=crs, transform=(resolution, 0.0, 0.0, 0.0, -resolution, 0.0)), (0, 0))

    @property
    def pixels(self) -> int:
        """Number of pixels."""
        return self.size[0] * self.size[1]

    def around(self, rasters: Sequence[PlacedRaster]) -> MapGrid:
        """Return the grid with the same pixels whose extent is the smallest that covers all of the rasters."""
        boxes = np.array([self.box_of(raster) for raster in rasters])
        col, row = (math.floor(low + _ROUNDING) for low in boxes[:, :2].min(axis=0))
        right, lower = (math.ceil(high - _ROUNDING) for high in boxes[:, 2:].max(axis=0))
        return MapGrid(self.georeference.shifted(row, col), (max(1, lower - row), max(1, right - col)))

    @property
    def extent(self) -> Box:
        """Smallest box around the grid, in its coordinates."""
        return PixelGrid(self.georeference.transform or _UNPLACED, self.size).extent

    def grown(self, margin: int) -> MapGrid:
        """Return the grid with ``margin`` more pixels on each side."""
        height, width = self.size
        return self.window(Window(-margin, -margin, height + 2 * margin, width + 2 * margin))

    def within(self, other: MapGrid) -> MapGrid:
        """Return the part of the grid that a grid in the same system covers. It must cover a pixel."""
        left, upper, right, lower = self.box_of(PlacedRaster("the map", other.georeference, other.size))
        row, col = max(0, math.floor(upper + _ROUNDING)), max(0, math.floor(left + _ROUNDING))
        end = min(self.size[0], math.ceil(lower - _ROUNDING)), min(self.size[1], math.ceil(right - _ROUNDING))
        return self.window(Window(row, col, max(1, end[0] - row), max(1, end[1] - col)))

    def part(self, box: Box, box_crs: str | None) -> MapGrid:
        """Return the part of the grid that a bounding box touches. Raise InputError if it touches no pixel."""
        return self.window(window_of_box(box, box_crs, self.georeference, self.size, "the map"))

    def window(self, window: Window) -> MapGrid:
        """Return a window of the grid."""
        return MapGrid(self.georeference.shifted(window.row, window.col), (window.height, window.width))

    def box_of(self, raster: PlacedRaster) -> Box:
        """Return the smallest box around a raster, as (left, upper, right, lower) in pixels of this grid."""
        points, own, crs = raster.border(), raster.place.crs or "", self.georeference.crs or ""
        remedy = f"{raster.name} cannot be placed in {crs[:60]}; choose another coordinate system by grid"
        if not same_system(own, crs):
            try:
                points = transformed(rasterio_crs(own), rasterio_crs(crs), points)
            except CPLE_BaseError as error:  # such as systems of two celestial bodies
                raise InputError(remedy) from error
        a, b, c, d, e, f = self.georeference.transform or _UNPLACED
        x, y, area = points[0] - c, points[1] - f, a * e - b * d
        box = extent(((e * x - b * y) / area, (a * y - d * x) / area))
        if not all(map(math.isfinite, box)):
            raise InputError(remedy)
        return box
