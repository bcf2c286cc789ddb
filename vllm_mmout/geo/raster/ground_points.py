"""Types for affine transforms from pixels to coordinates, and for ground control points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Affine: TypeAlias = tuple[float, float, float, float, float, float]
"""Transform (a, b, c, d, e, f) of pixels to coordinates, as in rasterio: x = a * column + b * row + c, y = d * column +
e * row + f."""


@dataclass(frozen=True, slots=True)
class GroundControlPoint:
    """Point of a raster whose position on the ground is known."""

    row: float
    """Distance of the point from the raster's upper edge, in pixels."""
    col: float
    """Distance of the point from the raster's left edge, in pixels."""
    x: float
    """Easting or longitude of the point, in the units of its coordinate system."""
    y: float
    """Northing or latitude of the point, in the units of its coordinate system."""
    z: float = 0.0
    """Height of the point."""
