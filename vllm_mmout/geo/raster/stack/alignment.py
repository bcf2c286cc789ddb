"""Class `Alignment`: position of one raster's pixels in the grid of another raster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from rasterio._err import CPLE_BaseError
from rasterio.crs import CRS
from rasterio.transform import Affine as RasterioAffine

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.crs.text import rasterio_crs, same_system, shown_beside
from vllm_mmout.geo.raster.georeference import Georeference
from vllm_mmout.geo.raster.ground_points import Affine
from vllm_mmout.geo.raster.pixel_grid import BoxSystem, PixelGrid, extent, transformed
from vllm_mmout.geo.raster.raster import Window

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.windowed import OpenRaster

_Matrix: TypeAlias = "NDArray[np.float64]"
"""Matrix [3, 3] of an affine transform of (column, row, 1) or (x, y, 1)."""

_EXACT = 1e-5
"""Maximum distance, in pixels, between corresponding pixels of two rasters with the same grid. It is not 0, since files
may store coordinates with few digits."""
_MAX_DRIFT = 0.01
"""Largest drift, in pixels, between the grids of two rasters if the grids are to count as parallel.

The drift is how far the two grids diverge from one side of the reference raster to the other."""
_STEPS = 64
"""Number of straight pieces that approximate each edge of a window in another coordinate system."""
_EDGE_MARGIN = 1
"""Margin, in pixels, that is added on each side of a window after conversion from another coordinate system.

The edges of a converted window are curves, which the conversion only approximates."""
_SHARED_CRS = CRS.from_epsg(3857)
"""Arbitrary CRS that is passed to GDAL as both source and target CRS if two rasters have the same CRS.

GDAL then gets pixel positions instead of map coordinates, for more precision."""
_ORIGIN = 1000.0
"""Offset added to row and column numbers that are passed to GDAL as coordinates.

Without the offset, a raster's corner would be at (0, 0), and rasterio would treat the transform as missing."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """The position of a raster in the grid of another raster, the reference.

    The two matrices to coordinates refer to the coordinate system of the respective raster. If the rasters share a
    coordinate system, both give pixels of the raster instead.
    """

    size: tuple[int, int]
    """Height and width of the raster, in pixels."""
    raster_to_coordinates: _Matrix
    """Matrix that converts pixels of the raster to coordinates."""
    reference_to_coordinates: _Matrix
    """Matrix that converts pixel positions in the target grid (the grid of the reference raster) to coordinates."""
    to_raster: _Matrix
    """Matrix that converts pixel positions in the target grid to pixel positions in this raster. If the coordinate
    systems differ, the matrix is only exact at the centre of this raster."""
    covers: bool = True
    """True if the raster covers the whole reference raster, and the rows of the two rasters are parallel.

    Up to one pixel of the raster may be missing on each side."""
    box_converter: BoxSystem | None = None
    """Converter from bounding boxes in the reference raster's coordinate system to windows of this raster. None if the
    two rasters have the same coordinate system."""

    @property
    def exact(self) -> bool:
        """Whether the raster's pixels coincide with pixels of the target grid, so that resampling is not needed."""
        shift = self.to_raster - np.eye(3)
        return self.box_converter is None and not shift[:, :2].any() and bool((shift == shift.round()).all())

    @property
    def scale(self) -> tuple[float, float]:
        """Height and width of a pixel of the reference raster (the target grid), measured in pixels of this raster."""
        return float(np.hypot(*self.to_raster[:2, 1])), float(np.hypot(*self.to_raster[:2, 0]))

    def source(self, window: Window, *, bilinear: bool) -> Window | None:
        """Return the window of this raster that holds the source pixels for a window of the reference raster.

        Return None if this raster does not overlap ``window``, the window of the reference raster. ``bilinear`` adds
        the neighbours that bilinear interpolation needs.
        """
        reach = np.maximum(self.scale, 1.0) if bilinear else np.full(2, 0.5)
        if self.box_converter is None:
            middles = _corners(self.to_raster, window, margin=0.5)
            slack = 0.5 if bilinear else 0.5 + _EXACT
            first = np.floor(middles.min(axis=1) - reach + slack).astype(int)
            end = np.floor(middles.max(axis=1) + reach - 1 + slack).astype(int) + 1
        else:
            y, x = _corners(self.reference_to_coordinates, window)
            parts = self.box_converter.windows(extent((x, y)), _STEPS)
            if not parts:
                return None
            around = np.ceil(reach).astype(int) + _EDGE_MARGIN
            first = np.min([(part.row, part.col) for part in parts], axis=0) - around
            end = np.max([(part.row + part.height, part.col + part.width) for part in parts], axis=0) + around
        if self.covers:  # beyond the raster's edge its last pixels are repeated
            first, end = first.clip(0, np.subtract(self.size, 1)), end.clip(1, self.size)
        first, end = first.clip(0), np.minimum(end, self.size)
        return Window(*map(int, (*first, *(end - first)))) if (end > first).all() else None

    def nearest(self, source: Window, window: Window) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the indices of this raster's rows and columns that are nearest to the rows and columns of ``window``.

        ``window`` is a window of the reference raster. Requires ``covers``. The indices are relative to ``source``, a
        window of this raster, and clipped to its last row and column.
        """
        rows = self.to_raster[1, 1] * (np.arange(window.height) + window.row + 0.5) + self.to_raster[1, 2]
        cols = self.to_raster[0, 0] * (np.arange(window.width) + window.col + 0.5) + self.to_raster[0, 2]
        rows, cols = np.floor(rows + _EXACT) - source.row, np.floor(cols + _EXACT) - source.col
        return rows.clip(0, source.height - 1).astype(np.intp), cols.clip(0, source.width - 1).astype(np.intp)

    def warp_arguments(self, source: Window, window: Window) -> dict[str, Any]:
        """Return the CRS and transform of ``source`` and of ``window``, as arguments of ``rasterio.warp.reproject``.

        ``source`` is a window of this raster, ``window`` is a window of the reference raster.
        """
        there, own = (self.box_converter and self.box_converter.systems) or (_SHARED_CRS, _SHARED_CRS)
        return {
            "src_crs": own,
            "src_transform": _affine(self.raster_to_coordinates @ _shift(source.row, source.col)),
            "dst_crs": there,
            "dst_transform": _affine(self.reference_to_coordinates @ _shift(window.row, window.col)),
        }


def aligned(raster: OpenRaster, reference: OpenRaster) -> Alignment:
    """Return the position of a raster in the grid of another raster, the reference.

    If the axes of the two grids are parallel, the raster must cover the reference, except for one of its own pixels at
    each side. Otherwise, for example in another coordinate system, the two must overlap.

    Raises:
        InputError: the rasters do not fit together; the message describes both grids.

    """
    here, there = raster.georeference, reference.georeference
    if here is None or there is None or here.transform is None or there.transform is None:
        _check_same_place(raster, reference)
        return _of_pixels(raster, np.eye(3))
    own, other = here.transform, there.transform
    if not np.linalg.det(_matrix(own)) or not np.linalg.det(_matrix(other)):
        raise _apart(raster, reference, "have pixels without an area")
    if same_system(here.crs, there.crs) and here.unread_keys == there.unread_keys:
        alignment = _on_one_map(raster, reference, own, other)
    elif here.crs is None or there.crs is None:
        raise _apart(raster, reference, "have different coordinate systems")
    else:
        try:
            alignment = _across_maps(raster, own, rasterio_crs(here.crs), other, rasterio_crs(there.crs))
            alignment.source(Window(0, 0, *reference.size), bilinear=False)
        except (CPLE_BaseError, InputError) as error:
            why = "have different coordinate systems, and one cannot represent the area of the other"
            raise _apart(raster, reference, why) from error
    if alignment.source(Window(0, 0, *reference.size), bilinear=False) is None:
        raise _apart(raster, reference, "have no ground in common")
    return alignment


def _on_one_map(raster: OpenRaster, reference: OpenRaster, own: Affine, other: Affine) -> Alignment:
    origin = own[2], own[5]  # subtracted first, as differences of large numbers lose digits
    near = np.asarray(np.linalg.solve(_matrix(own, origin), _matrix(other, origin)), np.float64)
    (height, width), size = reference.size, np.array(raster.size)
    if abs(near[0, 1]) * height + abs(near[1, 0]) * width > _MAX_DRIFT:
        return _of_pixels(raster, near, covers=False)
    near[0, 1] = near[1, 0] = 0
    for axis, length in ((0, width), (1, height)):
        if abs(near[axis, axis] - 1) * length + abs(near[axis, 2] - round(near[axis, 2])) < _EXACT:
            near[axis, axis], near[axis, 2] = 1, round(near[axis, 2])
    corners = _corners(near, Window(0, 0, height, width))
    if (corners < -1 - _EXACT).any() or (corners.max(axis=1) > size + 1 + _EXACT).any():
        raise _apart(raster, reference, "do not cover the same ground")
    return _of_pixels(raster, near)


def _of_pixels(raster: OpenRaster, near: _Matrix, *, covers: bool = True) -> Alignment:
    own = _shift(_ORIGIN, _ORIGIN)
    return Alignment(raster.size, own, own @ near, near, covers=covers)


def _across_maps(raster: OpenRaster, own: Affine, own_crs: CRS, other: Affine, other_crs: CRS) -> Alignment:
    system = BoxSystem(
        PixelGrid(own, raster.size),
        (other_crs, own_crs),
        geographic=other_crs.is_geographic,
        raster_geographic=own_crs.is_geographic,
    )
    row, col = raster.size[0] / 2, raster.size[1] / 2
    middle = np.array([[col, col + 1, col], [row, row, row + 1], [1, 1, 1]])  # three points, one per column
    x, y, _ = _matrix(own) @ middle
    there = np.linalg.solve(_matrix(other), np.stack([*transformed(own_crs, other_crs, (x, y)), np.ones(3)]))
    return Alignment(
        raster.size, _matrix(own), _matrix(other), middle @ np.linalg.inv(there), covers=False, box_converter=system
    )


def _matrix(transform: Affine, origin: tuple[float, float] = (0.0, 0.0)) -> _Matrix:
    """Convert a transform to a matrix whose coordinates are relative to ``origin`` (x, y)."""
    a, b, c, d, e, f = transform
    return np.array([[a, b, c - origin[0]], [d, e, f - origin[1]], [0.0, 0.0, 1.0]])


def _shift(row: float, col: float) -> _Matrix:
    """Return the matrix that converts pixels of a window at ``row`` and ``col`` to pixels of the whole raster."""
    return np.array([[1.0, 0.0, col], [0.0, 1.0, row], [0.0, 0.0, 1.0]])


def _corners(matrix: _Matrix, window: Window, margin: float = 0.0) -> NDArray[np.float64]:
    """Transform the four corners of a window by ``matrix``. Return their y and x coordinates as an array [2, 4].

    Before that, each side of the window is moved inwards by ``margin`` pixels.
    """
    left, right = window.col + margin, window.col + window.width - margin
    top, lower = window.row + margin, window.row + window.height - margin
    places: NDArray[np.float64] = matrix @ np.array([[left, right, left, right], [top, top, lower, lower], [1] * 4])
    return places[[1, 0]]


def _affine(matrix: _Matrix) -> RasterioAffine:
    """Convert a matrix to rasterio's ``Affine``. Shift an origin at (0, 0) by a tiny part of a pixel.

    Without the shift, rasterio would take (1, 0, 0, 0, -1, 0) for a missing transform and flip the array.
    """
    a, b, c, d, e, f = map(float, matrix[:2].ravel())
    return RasterioAffine(a, b, c, d, e, f + 2 * _EXACT * (max(abs(c), abs(f)) < _EXACT))


def _check_same_place(raster: OpenRaster, reference: OpenRaster) -> None:
    if raster.size != reference.size:
        raise _apart(raster, reference, "differ in size and have no transform that relates them")
    here, there = (one.georeference or Georeference() for one in (raster, reference))
    systems = same_system(here.crs, there.crs) and same_system(here.gcps_crs, there.gcps_crs)
    others = ("transform", "gcps", "unread_keys", "rpcs")  # all other fields of the position
    if not systems or any(getattr(here, fact) != getattr(there, fact) for fact in others):
        raise _apart(raster, reference, "have different georeferences")


def _apart(raster: OpenRaster, reference: OpenRaster, why: str) -> InputError:
    return InputError(
        f"the files of one input must share a grid, but these {why}: {_grid(reference, raster)};"
        f" {_grid(raster, reference)}. Warp one to the other with gdalwarp -t_srs -te -tr, or choose other files"
    )


def _grid(raster: OpenRaster, beside: OpenRaster) -> str:
    """Describe the grid of a raster for an error message that compares it with the grid of the raster ``beside``."""
    height, width = raster.size
    place = raster.georeference
    grid = f"{raster.name}: {height} x {width} pixels"
    if place is None:
        return f"{grid} without a georeference"
    crs, other = _crs(place), _crs(beside.georeference)
    system = place.why_no_crs if crs is None else shown_beside(crs, other or crs)
    if place.transform is None:
        return f"{grid}, {system}, {len(place.gcps)} ground control points and no transform"
    a, b, c, d, e, f = place.transform
    turned = f", turned ({b:.10g}, {d:.10g})" if b or d else ""
    return f"{grid} of {e:.10g} x {a:.10g}{turned}, {system}, upper left corner x={c:.10g}, y={f:.10g}"


def _crs(place: Georeference | None) -> str | None:
    return None if place is None else place.crs or place.gcps_crs
