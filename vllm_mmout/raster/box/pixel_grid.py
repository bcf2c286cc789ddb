"""PixelGrid: the pixels of a raster that has a transform, and which of them lie in an area."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vllm_mmout.raster.box.rings import Points, bend, extent, ring, within
from vllm_mmout.raster.placement import Affine
from vllm_mmout.raster.window import Window

_ROUNDING = 1e-6
"""Pixels by which a border may be off: so little of a further pixel does not count."""
_SETTLED = 1e-3
"""Pixels by which a curved edge may lie off the straight pieces in which it is followed; they count as the area's."""
_STEPS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Pieces in which a curved edge is followed, fewer first."""


@dataclass(frozen=True, slots=True)
class Area:
    """An area in a raster's coordinates."""

    border: Callable[[int], Points]
    """Its border, for a number of pieces in which to follow each edge."""
    straight: bool
    """Whether one piece is enough."""


@dataclass(frozen=True, slots=True)
class PixelGrid:
    """Where the pixels of a raster lie."""

    transform: Affine
    """Of an area that is not 0."""
    crs: str | None
    size: tuple[int, int]
    """Height and width."""

    def border(self, steps: int) -> Points:
        """The border of the raster in its coordinates, each edge in so many pieces."""
        a, b, c, d, e, f = self.transform
        cols, rows = ring((0.0, 0.0, float(self.size[1]), float(self.size[0])), steps)
        return a * cols + b * rows + c, d * cols + e * rows + f

    def window(self, area: Area) -> Window | None:
        """The window around the pixels that lie in an area with more than their border; None where there are none."""
        height, width = self.size
        own = (0.0, 0.0, float(width), float(height))
        for steps in (1,) if area.straight else _STEPS:
            points = self._pixels(area.border(steps))
            off = bend(points, steps, own)
            if off < _SETTLED:
                break
        inner = within(points, own)
        if inner is None:
            return None
        left, upper, right, lower = extent(inner)
        slack = self._rounding() - off
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
        x, y = self.border(1)
        a, b, _, d, e, _ = self.transform
        pixel = abs(a * e - b * d) / max(math.hypot(a, d), math.hypot(b, e))
        return _ROUNDING + 4 * float(np.spacing(max(np.abs(x).max(), np.abs(y).max()))) / pixel


def _span(low: float, high: float, length: int, slack: float) -> tuple[int, int] | None:
    """First and number of the pixels of an axis between two places; None where that is its very end, or beyond."""
    if high <= _ROUNDING or low >= length - _ROUNDING:
        return None
    first, end = max(math.floor(low + slack), 0), min(math.ceil(high - slack), length)
    if end <= first:  # thinner than the rounding
        first = min(math.floor((low + high) / 2), length - 1)
        end = first + 1
    return first, end - first
