"""Affine transforms of pixels to coordinates, and ground control points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Affine: TypeAlias = tuple[float, float, float, float, float, float]
"""(a, b, c, d, e, f): x = a * column + b * row + c; y = d * column + e * row + f. The order of rasterio's Affine."""


@dataclass(frozen=True, slots=True)
class GroundControlPoint:
    """A place of the raster whose coordinates are known."""

    row: float
    """From the upper edge, in pixels."""
    col: float
    """From the left edge, in pixels."""
    x: float
    y: float
    z: float = 0.0
