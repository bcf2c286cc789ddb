"""Compute how far apart neighbouring pixels of a raster are on the ground, to the east and to the north."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rasterio._err import CPLE_BaseError
from rasterio.crs import CRS
from rasterio.warp import transform

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.crs.text import rasterio_crs

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.georeference import Georeference

_A = 6378137.0
"""Semi-major axis of the WGS 84 ellipsoid in metres."""
_E2 = 6.69437999014e-3
"""Squared eccentricity of the WGS 84 ellipsoid."""
_PART = 16
"""Divisor of a raster's width and height: ground distances are measured across the central 1/16 of each side."""


def ground_steps(georeference: Georeference | None, size: tuple[int, int]) -> NDArray[np.float64] | None:
    """Return the ground distance, in metres, between adjacent columns and between adjacent rows of a raster.

    The distances are measured at the centre of the raster on the WGS 84 ellipsoid, so that they are true in any
    projection, and north is true north.

    Args:
        georeference: georeference of the raster.
        size: (height, width) of the raster in pixels.

    Returns:
        float64 [2, 2]: the first row has the metres to the east of a column and of a row, the second row the metres to
        the north. None if they are unknown.

    """
    if georeference is None or georeference.transform is None or georeference.crs is None:
        return None
    a, b, c, d, e, f = georeference.transform
    rows, cols = (max(1.0, side / _PART) for side in size)
    middle = size[1] / 2, size[0] / 2
    ends = [(middle[0] + sign * cols / 2, middle[1]) for sign in (-1, 1)]
    ends += [(middle[0], middle[1] + sign * rows / 2) for sign in (-1, 1)]
    places = [(a * col + b * row + c, d * col + e * row + f) for col, row in ends]
    try:
        longitudes, latitudes = transform(
            rasterio_crs(georeference.crs), CRS.from_epsg(4326), *zip(*places, strict=True)
        )
    except (InputError, CPLE_BaseError):
        return None
    if not all(map(math.isfinite, (*longitudes, *latitudes))):
        return None
    steps = [
        _metres(longitudes[first : first + 2], latitudes[first : first + 2], count)
        for first, count in ((0, cols), (2, rows))
    ]
    matrix = np.array(steps, np.float64).T
    return matrix if abs(np.linalg.det(matrix)) > 0 else None


def _metres(longitudes: list[float], latitudes: list[float], pixel_count: float) -> tuple[float, float]:
    """Return the metres per pixel, as (to the east, to the north), between two points ``pixel_count`` pixels apart.

    The points are two longitudes and two latitudes in degrees.
    """
    latitude = math.radians(sum(latitudes) / 2)
    root = math.sqrt(1 - _E2 * math.sin(latitude) ** 2)
    turn = (longitudes[1] - longitudes[0] + 180) % 360 - 180  # the shorter way around the antimeridian
    east = math.radians(turn) * _A / root * math.cos(latitude)
    north = math.radians(latitudes[1] - latitudes[0]) * _A * (1 - _E2) / root**3
    return east / pixel_count, north / pixel_count
