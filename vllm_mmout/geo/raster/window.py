"""Window, affine transforms and ground control points: places in a raster.

Pixel coordinates count from the upper left corner of the upper left pixel, as in GDAL.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from vllm_mmout.errors import InputError

_SIDES = ("row", "col", "height", "width")


@dataclass(frozen=True, slots=True)
class Window:
    """A rectangle of the input, in pixels."""

    row: int
    """First row, from the top, from 0."""
    col: int
    """First column, from the left, from 0."""
    height: int
    width: int

    @property
    def rows(self) -> slice:
        """The rows, to index an array with."""
        return slice(self.row, self.row + self.height)

    @property
    def cols(self) -> slice:
        """The columns, to index an array with."""
        return slice(self.col, self.col + self.width)

    def within(self, size: tuple[int, int]) -> bool:
        """Whether the rectangle has pixels, all of them of a raster of (height, width)."""
        inside = self.row + self.height <= size[0] and self.col + self.width <= size[1]
        return inside and min(self.row, self.col) >= 0 and min(self.height, self.width) >= 1

    def __str__(self) -> str:
        last_row, last_col = self.row + self.height - 1, self.col + self.width - 1
        return f"rows {self.row} to {last_row}, columns {self.col} to {last_col}"


def as_window(given: Any) -> Window:
    """A window of what a user gives: a `Window` or anything with its attributes, four integers, or a table of them."""
    try:
        if isinstance(given, Mapping):
            values = {**given}
        elif hasattr(given, "row") and hasattr(given, "col"):
            values = {side: getattr(given, side) for side in _SIDES}
        else:
            values = dict(zip(_SIDES, given, strict=True))
        return Window(**{side: operator.index(value) for side, value in values.items()})
    except (AttributeError, TypeError, ValueError):
        raise InputError(f"window must be (row, col, height, width), four integers, got {given!r}") from None


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
