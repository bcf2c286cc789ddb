"""Corners of pixels as coordinates: numbers, and text that names each corner exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.geo.vectors.chains import ranges
from vllm_mmout.geo.vectors.corners import FLAG_BITS

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.raster import Affine

PIXELS: Affine = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
"""Columns and rows themselves, for a raster that lies nowhere."""
_COMMA, _OPEN, _CLOSE = b",[]"


class Lattice:
    """The corners of a raster's pixels."""

    def __init__(self, transform: Affine, size: tuple[int, int]) -> None:
        a, b, c, d, e, f = self._transform = transform
        self._turned = a * e - b * d > 0
        self._tables: tuple[NDArray[np.uint8], NDArray[np.uint8]] | None = None
        if b == d == 0:
            x, y = a * np.arange(size[1] + 1) + c, e * np.arange(size[0] + 1) + f
            self._tables = _texts(x), _texts(y)

    def closed(
        self, vertices: NDArray[np.int32], counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Columns and rows [n, 2] of rings that end where they begin; where each begins, with their number at the end.

        Exteriors run counterclockwise in coordinates.
        """
        starts = np.cumsum(counts) - counts
        places = ranges(starts, counts + 1)
        bounds = np.append(0, np.cumsum(counts + 1))
        places[bounds[1:] - 1] = starts
        if self._turned:  # counterclockwise as a picture is seen is clockwise in coordinates
            places = places[np.repeat(bounds[1:] - 1 + bounds[:-1], counts + 1) - np.arange(len(places))]
        rows = vertices[places]
        rows[:, 0] >>= FLAG_BITS
        return rows, bounds

    def points(self, rows: NDArray[np.int32]) -> NDArray[np.float64]:
        """The coordinates [n, 2] of columns and rows."""
        a, b, c, d, e, f = self._transform
        cols, lines = rows[:, 0].astype(np.float64), rows[:, 1].astype(np.float64)
        if self._tables is not None:
            return np.stack([a * cols + c, e * lines + f], axis=1)
        return np.stack([a * cols + b * lines + c, d * cols + e * lines + f], axis=1)

    def text(
        self, rows: NDArray[np.int32], begins: NDArray[np.uint8], ends: NDArray[np.bool_]
    ) -> tuple[bytes, NDArray[np.int64]]:
        """Coordinates as JSON, with brackets and commas, and where each corner begins, with the length at the end.

        A ring ``begins`` with a corner as the first of a polygon (1) or as another (2), and ``ends`` with it.
        """
        x, y = self._numbers(rows)
        wide = x.shape[1]
        fields = np.zeros((len(rows), wide + y.shape[1] + 6), np.uint8)
        fields[:, 0] = np.where(begins == 2, _COMMA, 0)
        fields[:, 1] = np.where(begins > 0, _OPEN, 0)
        fields[:, 2] = _OPEN
        fields[:, 3 : 3 + wide] = x
        fields[:, 3 + wide] = _COMMA
        fields[:, 4 + wide : -2] = y
        fields[:, -2] = _CLOSE
        fields[:, -1] = np.where(ends, _CLOSE, _COMMA)
        there = fields != 0
        return fields[there].tobytes(), np.append(0, np.cumsum(there.sum(axis=1)))

    def _numbers(self, rows: NDArray[np.int32]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """The text of the two coordinates of each corner, a row each, filled up with 0."""
        if self._tables is None:
            points = self.points(rows)
            return _texts(points[:, 0]), _texts(points[:, 1])
        return self._tables[0][rows[:, 0]], self._tables[1][rows[:, 1]]


def _texts(numbers: NDArray[np.floating]) -> NDArray[np.uint8]:
    """The shortest text of each number that gives it back, uint8 [n, longest], filled up with 0."""
    texts = np.array([repr(number).removesuffix(".0") for number in numbers.tolist()], np.bytes_)
    return texts.view(np.uint8).reshape(len(numbers), -1)
