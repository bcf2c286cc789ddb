"""One level of the image pyramid of a GeoTIFF: the full image, or an overview that takes the nearest pixels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

_Copy: TypeAlias = "tuple[int, slice, slice | NDArray[np.intp]]"
"""Pixels to copy to an overview tile along one axis: (index of the tile, slice of the tile to fill, source indices).

The source is a tile of the next finer level."""


class PyramidLevel:
    """Full image or overview of a GeoTIFF. It holds unfinished tiles, and the file offsets of finished tiles."""

    def __init__(self, size: tuple[int, int], tile_side: int, finer_size: tuple[int, int]) -> None:
        """Create a level of an image pyramid. ``finer_size`` (height, width) is the size of the next finer level."""
        self.size = size
        self._side = tile_side
        self.starts = np.zeros([-(-length // tile_side) for length in size], np.int64)
        self.sizes = np.zeros_like(self.starts)
        self._unfinished: dict[tuple[int, int], tuple[NDArray[Any], int]] = {}
        """Maps (row, column) of each unfinished tile to (pixels of the tile, number of pixels not yet written)."""
        self._copies = [_copies(*lengths, tile_side) for lengths in zip(size, finer_size, strict=True)]
        """Results of the function `_copies` for the two axes: first for rows, then for columns."""

    def tiles_to_fill(
        self, finer_tile: tuple[int, int], pixels: NDArray[Any]
    ) -> Iterator[tuple[tuple[int, int], tuple[slice, slice], NDArray[Any]]]:
        """Yield the tiles of this overview that need pixels of ``finer_tile``, a tile of the next finer pyramid level.

        Each item is the position of the tile, the slices of the tile to fill, and the pixels for them.
        """
        rows, cols = (copies[at] for copies, at in zip(self._copies, finer_tile, strict=True))
        for row, there_rows, from_rows in rows:
            for col, there_cols, from_cols in cols:
                yield (row, col), (there_rows, there_cols), pixels[:, from_rows][:, :, from_cols]

    def paint(self, tile: tuple[int, int], slices: tuple[slice, slice], pixels: NDArray[Any]) -> NDArray[Any] | None:
        """Write pixels into ``slices`` of a tile. Return all pixels of the tile if it is now complete, else None."""
        if tile not in self._unfinished:
            shape = [min(self._side, length - at * self._side) for length, at in zip(self.size, tile, strict=True)]
            self._unfinished[tile] = np.empty((len(pixels), *shape), pixels.dtype), shape[0] * shape[1]
        whole, missing = self._unfinished.pop(tile)
        whole[:, *slices] = pixels
        missing -= pixels[0].size
        if not missing:
            return whole
        self._unfinished[tile] = whole, missing
        return None


def _copies(length: int, finer_length: int, side: int) -> list[list[_Copy]]:
    """Return which pixels an overview copies along one axis. Item i lists the copies from tile i of the finer level.

    Each copy says what one tile of the overview copies from the finer tile. ``length``, ``finer_length`` and
    ``side`` are sizes in pixels: of the overview, of the finer level, and of a tile.
    """
    nearest = _nearest(length, finer_length)
    copies: list[list[_Copy]] = []
    first = 0
    for start in range(0, finer_length, side):
        last = int(np.searchsorted(nearest, start + side))
        of_tile: list[_Copy] = []
        while first < last:
            tile = first // side
            end = min(last, (tile + 1) * side)
            there = slice(first - tile * side, end - tile * side)
            of_tile.append((tile, there, _as_slice(nearest[first:end] - start)))
            first = end
        copies.append(of_tile)
    return copies


def _as_slice(indices: NDArray[np.intp]) -> slice | NDArray[np.intp]:
    """Return evenly spaced indices as a slice, which numpy copies faster. Return other indices unchanged."""
    first, last, count = int(indices[0]), int(indices[-1]), len(indices)
    step = (last - first) // max(1, count - 1) or 1
    evenly = slice(first, last + 1, step)
    return evenly if np.array_equal(np.arange(first, last + 1, step), indices) else indices


def _nearest(length: int, source_length: int) -> NDArray[np.intp]:
    """Return the ``length`` indices of the source pixels that GDAL copies to an overview along one axis."""
    return (0.5 + np.arange(length) * (source_length / length)).astype(np.intp)
