"""Classes `MapGrid`, the pixel grid of a map, and `PlacedRaster`, the position of a raster on the map."""

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
"""Tolerance for rounding errors at the edges of a map, as a fraction of a pixel."""
_UNPLACED = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
"""Placeholder for a missing transform, which only the type checker needs: `PlacedRaster` refuses rasters without a
transform.
"""


@dataclass(frozen=True, slots=True)
class PlacedRaster:
    """Name, georeference and size of one of the rasters that are combined into a map.

    Raises:
        InputError: the raster has no coordinate system, or its pixels have no transform or no area.

    """

    name: str
    """Name of the raster in messages."""
    georeference: Georeference | None
    size: tuple[int, int]
    """Height and width of the raster, in pixels."""

    def __post_init__(self) -> None:
        place = self.georeference
        if place is None or place.transform is None or place.crs is None:
            raise InputError(
                f"{self.name} has {_missing(place)}, so its place on the map is unknown; georeference it first, as"
                " with gdalwarp or gdal_translate -a_srs -a_ullr"
            )
        a, b, _, d, e, _ = place.transform
        if a * e == b * d:
            raise InputError(f"{self.name} has pixels without an area, its transform is {place.transform}; correct it")

    @property
    def place(self) -> Georeference:
        """Georeference of the raster, which is known to have a coordinate system and a transform."""
        return self.georeference or Georeference()

    def border(self) -> Points:
        """Return points on the border of the raster as a closed ring, in the raster's coordinates."""
        cols, rows = ring((0.0, 0.0, float(self.size[1]), float(self.size[0])), _STEPS)
        a, b, c, d, e, f = self.place.transform or _UNPLACED
        return a * cols + b * rows + c, d * cols + e * rows + f


def _missing(georeference: Georeference | None) -> str:
    """Describe which parts of a georeference are missing, for an error message."""
    if georeference is None or georeference.transform is not None:
        return "no coordinate system" if georeference is None else georeference.why_no_crs
    if georeference.gcps or georeference.rpcs:
        return f"{'ground control points' if georeference.gcps else 'RPCs'} but no transform"
    return "no coordinate system" if georeference.crs is None else "no transform"


@dataclass(frozen=True, slots=True)
class MapGrid:
    """The grid of a map: its coordinate system, its transform and its size."""

    georeference: Georeference
    size: tuple[int, int]
    """Height and width of the map, in pixels."""

    @classmethod
    def of(cls, raster: PlacedRaster) -> MapGrid:
        """Create a map grid with the coordinate system, transform and size of a raster.

        Ground control points and RPCs of the raster are dropped.
        """
        place = raster.place
        plain = Georeference(crs=place.crs, transform=place.transform, pixel_is_point=place.pixel_is_point)
        return cls(plain, raster.size)

    @classmethod
    def of_system(cls, crs: str, resolution: float) -> MapGrid:
        """Create an empty map grid in the coordinate system ``crs``, with square pixels of side ``resolution``.

        Call `around` to extend the grid so that it covers rasters. The edges of its pixels are at multiples of
        ``resolution``.
        """
        return cls(Georeference(crs=crs, transform=(resolution, 0.0, 0.0, 0.0, -resolution, 0.0)), (0, 0))

    @property
    def pixels(self) -> int:
        """Number of pixels."""
        return self.size[0] * self.size[1]

    def around(self, rasters: Sequence[PlacedRaster]) -> MapGrid:
        """Return the smallest grid that covers all ``rasters`` and whose pixels coincide with pixels of this grid."""
        boxes = np.array([self.box_of(raster) for raster in rasters])
        col, row = (math.floor(low + _ROUNDING) for low in boxes[:, :2].min(axis=0))
        right, lower = (math.ceil(high - _ROUNDING) for high in boxes[:, 2:].max(axis=0))
        return MapGrid(self.georeference.shifted(row, col), (max(1, lower - row), max(1, right - col)))

    @property
    def extent(self) -> Box:
        """Bounding box of the grid, in its coordinate system."""
        return PixelGrid(self.georeference.transform or _UNPLACED, self.size).extent

    def grown(self, margin: int) -> MapGrid:
        """Return the grid with ``margin`` more pixels on each side."""
        height, width = self.size
        return self.window(Window(-margin, -margin, height + 2 * margin, width + 2 * margin))

    def within(self, other: MapGrid) -> MapGrid:
        """Return the part of this grid that overlaps ``other``, a grid in the same coordinate system.

        The part has at least one pixel.
        """
        left, upper, right, lower = self.box_of(PlacedRaster("the map", other.georeference, other.size))
        row, col = max(0, math.floor(upper + _ROUNDING)), max(0, math.floor(left + _ROUNDING))
        end = min(self.size[0], math.ceil(lower - _ROUNDING)), min(self.size[1], math.ceil(right - _ROUNDING))
        return self.window(Window(row, col, max(1, end[0] - row), max(1, end[1] - col)))

    def part(self, box: Box, box_crs: str | None) -> MapGrid:
        """Return the part of this map grid that a bounding box touches. Raise InputError if it touches no pixel."""
        return self.window(window_of_box(box, box_crs, self.georeference, self.size, "the map"))

    def window(self, window: Window) -> MapGrid:
        """Return the part of this map grid inside ``window``, a rectangle of the grid's pixels."""
        return MapGrid(self.georeference.shifted(window.row, window.col), (window.height, window.width))

    def box_of(self, raster: PlacedRaster) -> Box:
        """Return the bounding box of a raster, as (left, upper, right, lower) in pixels of this grid."""
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
