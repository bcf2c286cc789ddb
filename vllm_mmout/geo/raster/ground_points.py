"""Types for affine transforms of pixels to coordinates, and for ground control points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Affine: TypeAlias = tuple[float, float, float, float, float, float]
"""(a, b, c, d, e, f) with x = a * column + b * row + c and y = d * column + e * row + f, as in rasterio's Affine."""


@dataclass(frozen=True, slots=True)
class GroundControlPoint:
    """A point of the raster whose coordinates are known."""

    row: float
    """Distance from the upper edge, in pixels."""
    col: float
    """Distance from the left edge, in pixels."""
    x: float
    """Coordinate x in the coordinate system of the points."""
    y: float
    """Coordinate y in the coordinate system of the points."""
    z: float = 0.0
    """Height."""
