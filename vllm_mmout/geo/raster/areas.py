"""Compute the ground area of pixels and of whole rasters."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.crs.text import rasterio_crs

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.georeference import Georeference

# WGS 84 (NGA.STND.0036): semi-major axis in metres, and flattening.
_A, _F = 6378137.0, 1 / 298.257223563
_B = _A * (1 - _F)
_E = math.sqrt(_F * (2 - _F))


def pixel_areas(georeference: Georeference | None, height: int) -> NDArray[np.float64] | None:
    """Return the ground area in m² of a pixel in each raster row, float64 [height]. Return None if areas are unknown.

    In a projected system this is the area on the map: exact for an equal-area projection, nearly exact in UTM, and too
    large away from the equator in Web Mercator. In a geographic system it is the exact area of a cell between two
    parallels and two meridians on the WGS 84 ellipsoid, which differs by less than 0.06 % on other ellipsoids. The rows
    of a geographic raster must run along parallels, otherwise the result is None.
    """
    if georeference is None or georeference.transform is None or georeference.crs is None:
        return None
    a, b, _, d, e, f = georeference.transform
    unit = _metres_per_unit(georeference.crs)
    if unit is None:
        return None
    if unit > 0:
        return np.full(height, abs(a * e - b * d) * unit**2)
    if b or d:
        return None
    edges = np.clip(f + e * np.arange(height + 1), -90, 90)
    return _areas_between(np.radians(edges)) * abs(math.radians(a))


def area_km2(georeference: Georeference | None, size: tuple[int, int]) -> float | None:
    """Return the ground area in km² of a raster of ``size`` (height, width). Return None if the area is unknown."""
    height, width = size
    areas = pixel_areas(georeference, height)
    return None if areas is None else float(areas.sum()) * width / 1e6


def _areas_between(latitudes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the area between each pair of adjacent latitudes (radians), in m² per radian of longitude.

    The area element of the ellipsoid (Snyder 1987, 4-18 to 4-20) is integrated by Gauss-Legendre quadrature, which is
    exact to all digits. The difference of two closed-form values would lose most digits for small cells.
    """
    places, weights = np.polynomial.legendre.leggauss(8)
    half = np.diff(latitudes) / 2
    inside = (latitudes[:-1] + half)[:, np.newaxis] + half[:, np.newaxis] * places
    element = _B**2 * np.cos(inside) / (1 - (_E * np.sin(inside)) ** 2) ** 2
    return np.abs(element @ weights * half)


def _metres_per_unit(crs: str) -> float | None:
    """Return the length of a CRS's coordinate unit in metres, 0 for degrees, or None for any other system."""
    try:
        system = rasterio_crs(crs)
    except InputError:
        return None
    if not (system.is_projected or system.is_geographic):
        return None
    unit = float(system.units_factor[1])
    if system.is_projected:
        return unit
    return 0.0 if math.isclose(unit, math.radians(1)) else None
