"""Alignment: where the pixels of one raster lie in the grid of another."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from vllm_mmout.errors import InputError
from vllm_mmout.raster.crs.same import same_system, shown_beside
from vllm_mmout.raster.georeference import Georeference
from vllm_mmout.raster.geotag import RPC_COEFFICIENTS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vllm_mmout.raster.placement import Affine
    from vllm_mmout.raster.windowed import OpenRaster

_EXACT = 1e-5
"""Pixels by which two grids may differ and count as one: coordinates are stored with some digits only."""
_TURNED = 0.01
"""Pixels by which rows or columns of two grids may drift apart."""


@dataclass(frozen=True)
class Axis:
    """One axis of a raster, seen from the reference grid: its coordinate is ``scale * x + shift``."""

    scale: float
    """Pixels of the raster in a pixel of the reference."""
    shift: float
    """Where the reference begins, in pixels of the raster."""
    size: int
    """Pixels of the raster along the axis."""

    @cached_property
    def exact(self) -> bool:
        """Whether pixels coincide."""
        return self.scale == 1 and self.shift == int(self.shift)

    def nearest(self, start: int, count: int) -> NDArray[np.intp]:
        """The pixel that holds the middle of each of some pixels of the reference, at the edge that next to it."""
        places = np.floor(self._middles(start, count) + _EXACT).astype(np.intp)
        return places.clip(0, self.size - 1)

    def between(self, start: int, count: int) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
        """The two pixels between whose middles each of some pixels of the reference lies, and the second's weight."""
        places = self._middles(start, count) - 0.5
        lower = np.floor(places).astype(np.intp)
        return lower.clip(0, self.size - 1), (lower + 1).clip(0, self.size - 1), places - lower

    def _middles(self, start: int, count: int) -> NDArray[np.float64]:
        return self.scale * (np.arange(start, start + count, dtype=np.float64) + 0.5) + self.shift


@dataclass(frozen=True, slots=True)
class Alignment:
    """How one raster lies in the grid of another: same axes, pixels of any size, shifted by any part of a pixel."""

    rows: Axis
    cols: Axis

    @property
    def exact(self) -> bool:
        """Whether pixels coincide."""
        return self.rows.exact and self.cols.exact


def aligned(raster: OpenRaster, reference: OpenRaster) -> Alignment:
    """Find out how a raster lies in the grid of another.

    Args:
        raster: the one to look up.
        reference: the one whose grid counts. The other must cover it, but for one of its own pixels at each side.

    Raises:
        InputError: the two do not share coordinate system and axes, or the first does not cover the second. Both grids
            are named.

    """
    here, there = raster.georeference, reference.georeference
    if here is None or there is None or here.transform is None or there.transform is None:
        _check_same_place(raster, reference)
        return Alignment(*(Axis(1.0, 0.0, size) for size in raster.size))
    if not same_system(here.crs, there.crs) or here.unread_keys != there.unread_keys:
        raise _apart(raster, reference, "have different coordinate systems")
    rows, cols = _axes(here.transform, there.transform, raster, reference)
    for axis, size in ((rows, reference.size[0]), (cols, reference.size[1])):
        if axis.shift < -1 - _EXACT or axis.scale * size + axis.shift > axis.size + 1 + _EXACT:
            raise _apart(raster, reference, "do not cover the same ground")
    return Alignment(rows, cols)


def _check_same_place(raster: OpenRaster, reference: OpenRaster) -> None:
    if raster.size != reference.size:
        raise _apart(raster, reference, "differ in size, and a transform that says how they lie is not there")
    here, there = (one.georeference or Georeference() for one in (raster, reference))
    systems = same_system(here.crs, there.crs) and same_system(here.gcps_crs, there.gcps_crs)
    if not systems or _place(here) != _place(there):
        raise _apart(raster, reference, "are not placed alike")


def _place(georeference: Georeference) -> object:
    """All that says where a raster lies, but a coordinate system that is understood."""
    rpcs = [tag.numbers for tag in georeference.tags if tag.code == RPC_COEFFICIENTS]
    return georeference.transform, georeference.gcps, georeference.unread_keys, rpcs


def _axes(own: Affine, other: Affine, raster: OpenRaster, reference: OpenRaster) -> tuple[Axis, Axis]:
    """Rows and columns of a raster seen from the reference, whose transform is ``other``."""
    a, b, c, d, e, f = own
    ra, rb, rc, rd, re_, rf = other
    area = a * e - b * d
    if not area or not ra * re_ - rb * rd:
        raise _apart(raster, reference, "have pixels without an area")
    height, width = reference.size
    turned = abs(e * rb - b * re_) / abs(area) * height + abs(a * rd - d * ra) / abs(area) * width
    col_scale, row_scale = (e * ra - b * rd) / area, (a * re_ - d * rb) / area
    if turned > _TURNED or min(col_scale, row_scale) <= 0:
        raise _apart(raster, reference, "are turned against each other")
    col_shift, row_shift = (e * (rc - c) - b * (rf - f)) / area, (a * (rf - f) - d * (rc - c)) / area
    return (
        _snapped(row_scale, row_shift, height, raster.size[0]),
        _snapped(col_scale, col_shift, width, raster.size[1]),
    )


def _snapped(scale: float, shift: float, length: int, size: int) -> Axis:
    """The axis; one whose pixels coincide but for rounding coincides."""
    if abs(scale - 1) * length + abs(shift - round(shift)) < _EXACT:
        return Axis(1.0, float(round(shift)), size)
    return Axis(scale, shift, size)


def _apart(raster: OpenRaster, reference: OpenRaster, why: str) -> InputError:
    return InputError(
        f"the files of one input must lie on one grid, and these {why}: {_grid(reference, raster)};"
        f" {_grid(raster, reference)}. Warp one to the other, as with gdalwarp -t_srs -te -tr, or choose other files"
    )


def _grid(raster: OpenRaster, beside: OpenRaster) -> str:
    """What a message says of a grid beside another: name, size, coordinate system, pixel size, upper left corner."""
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
