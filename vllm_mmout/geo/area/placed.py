"""`PlacedArea`: an area of interest on the pixels of a raster, and the masks of its windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import NDArray
from rasterio.features import rasterize
from rasterio.transform import Affine

from vllm_mmout.geo.raster.raster import Window, nearest_pixels

if TYPE_CHECKING:
    from vllm_mmout.geo.area.polygons import Area

_STRIP_PIXELS: Final = 2**22
"""Number of pixels of a mask that are computed at a time."""
_RASTERIZE_LOCK: Final = Lock()
"""Lock held during ``rasterize``, which for a moment changes the filters of Python's warnings in all threads."""
_MIN_POSITIONS: Final = 4
"""Smallest number of positions of a closed ring that encloses pixels: three corners, and the first corner again."""


@dataclass(frozen=True, slots=True, eq=False)
class PixelPolygon:
    """Polygon in pixel coordinates. A point is inside if it is inside an odd number of rings."""

    rings: tuple[NDArray[np.float64], ...]
    """Closed rings. Each ring is an array of positions (column, row), [n, 2]."""
    box: NDArray[np.float64]
    """Bounding box in pixels, [4]: smallest column, smallest row, largest column, largest row."""

    @classmethod
    def of(cls, rings: Iterable[NDArray[np.float64]]) -> Self:
        """Create a polygon from closed rings of (column, row). A polygon without rings is empty."""
        closed = tuple(rings)
        if not closed:
            return cls((), np.array([np.inf, np.inf, -np.inf, -np.inf]))
        low, high = (
            np.min([ring.min(axis=0) for ring in closed], axis=0),
            np.max([r.max(axis=0) for r in closed], axis=0),
        )
        return cls(closed, np.concatenate([low, high]))

    def near(self, window: Window, up: int) -> dict[str, Any] | None:
        """Return the part of the polygon near ``window``, as GeoJSON in pixels of the window.

        Return None if the polygon is outside the window. The row coordinates are multiplied by ``up``, the direction of
        the y axis (1 or -1).

        A run of positions beyond one side of the window is reduced to its ends. No edge inside the window changes, nor
        does the number of edges on either side of a pixel, so the same pixels are inside.
        """
        left, top, right, bottom = window.col, window.row, window.col + window.width, window.row + window.height
        if self.box[0] >= right or self.box[1] >= bottom or self.box[2] <= left or self.box[3] <= top:
            return None
        rings = []
        for ring in self.rings:
            kept = ring
            for axis, limit, side in ((0, left, -1), (0, right, 1), (1, top, -1), (1, bottom, 1)):
                beyond = (kept[:, axis] - limit) * side > 1
                inner = beyond[:-2] & beyond[1:-1] & beyond[2:]
                if inner.any():
                    kept = kept[np.concatenate([[True], ~inner, [True]])]
            if len(kept) >= _MIN_POSITIONS:
                rings.append(((kept - (left, top)) * (1, up)).tolist())
        return {"type": "Polygon", "coordinates": rings} if rings else None


@dataclass(frozen=True, slots=True, eq=False)
class PlacedArea:
    """An area of interest on the pixels of a raster, as `vllm_mmout.geo.placed_area` makes it."""

    area: Area
    polygons: tuple[tuple[PixelPolygon, ...], ...]
    """The polygons of each feature, in pixels of the raster for which `vllm_mmout.geo.placed_area` was called."""
    size: tuple[int, int]
    """(height, width) of the raster, or of the window of the raster that was selected by `within`."""
    window: Window
    """Window of the raster around all pixels that the area touches."""
    up: int = -1
    """Direction of the y axis: -1 if y decreases from row to row, as usual, or 1 if it increases. GDAL needs it to
    decide about pixels whose centre is exactly on a polygon's border."""
    assumed: tuple[str, ...] = ()
    """Sentences about assumptions that were made to convert the area to pixels."""
    origin: tuple[int, int] = (0, 0)
    """Row and column, in the whole raster, of the first pixel of the window that was selected by `within`. Both are 0
    if no window was selected."""

    def within(self, window: Window) -> PlacedArea:
        """Return a copy of the area for the part of the raster inside ``window``."""
        origin = self.origin[0] + window.row, self.origin[1] + window.col
        around = replace(self.window, row=self.window.row - window.row, col=self.window.col - window.col)
        return replace(self, size=(window.height, window.width), window=around, origin=origin)

    def mask(self, window: Window, feature: int | None = None) -> NDArray[np.bool_]:
        """Return the mask of a window, bool [height, width], True for pixels whose centre is inside a polygon.

        ``feature`` is the index of a feature, or None for all. Each pixel gets the same value in every window.
        """
        placed = replace(window, row=window.row + self.origin[0], col=window.col + self.origin[1])
        features = self.polygons if feature is None else self.polygons[feature : feature + 1]
        shapes = [
            near for polygons in features for each in polygons if (near := each.near(placed, self.up)) is not None
        ]
        if not shapes:
            return np.zeros((window.height, window.width), np.bool_)
        transform = Affine(1, 0, 0, 0, self.up, 0)
        with _RASTERIZE_LOCK:
            burnt = rasterize(shapes, (window.height, window.width), transform=transform, dtype=np.uint8)
        inside: NDArray[np.bool_] = burnt.view(np.bool_)
        return inside

    def resized_mask(self, window: Window, size: tuple[int, int], feature: int | None = None) -> NDArray[np.bool_]:
        """Return the mask of a window of the resized raster, bool [height, width], True inside the area.

        ``size`` is the (height, width) of the resized raster, and ``window`` is in its pixels. A pixel is inside if the
        original pixel at its centre is inside.
        """
        if size == self.size:
            return self.mask(window, feature)
        rows = nearest_pixels(self.size[0], size[0])[window.rows]
        cols = nearest_pixels(self.size[1], size[1])[window.cols]
        here = Window(int(rows[0]), int(cols[0]), int(rows[-1] - rows[0]) + 1, int(cols[-1] - cols[0]) + 1)
        mask: NDArray[np.bool_] = self.mask(here, feature)[(rows - rows[0])[:, np.newaxis], cols - cols[0]]
        return mask

    def strips(self) -> Iterator[Window]:
        """Yield windows of a few rows each, from top to bottom, that cover all pixels which the area touches.

        Each window is small, so that its mask needs little memory.
        """
        row, col, height, width = self.window
        step = max(1, _STRIP_PIXELS // width)
        for first in range(row, row + height, step):
            yield Window(first, col, min(step, row + height - first), width)

    def contains(self, points: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return whether the pixel at each point is inside the area, bool [n]. ``points`` are (column, row), [n, 2].

        Return False for a point outside the raster.
        """
        height, width = self.size
        places = np.floor(points).astype(np.int64)
        inside: NDArray[np.bool_] = np.all((places >= 0) & (places < (width, height)), axis=1)
        step = max(1, _STRIP_PIXELS // width)
        for first in np.unique(places[inside, 1] // step).tolist():
            strip = Window(first * step, 0, min(step, height - first * step), width)
            (here,) = np.nonzero(inside & (places[:, 1] // step == first))
            inside[here] = self.mask(strip)[places[here, 1] - strip.row, places[here, 0]]
        return inside
