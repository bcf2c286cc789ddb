"""Find the location and dates of an image for TerraTorch models, in the request or else in the file."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError
from vllm_mmout.geo import proj_crs
from vllm_mmout.models.inputs.raster_view import RasterView


def location_of(view: RasterView) -> NDArray[np.float32] | None:
    """Return latitude and longitude of an input's centre in degrees, as float32 [2], or None if unknown.

    They come from the request, or else from the georeference. Prithvi's network and data sets expect this order.
    TerraTorch's plugin sends the reverse order.
    """
    if view.params.location is not None:
        return np.array(view.params.location, np.float32)
    georeference = view.georeference
    if georeference is None or georeference.transform is None or georeference.crs is None:
        return None
    a, b, c, d, e, f = georeference.transform
    row, col = (side / 2 for side in view.size)
    try:
        longitude, latitude = _to_geographic(georeference.crs).transform(a * col + b * row + c, d * col + e * row + f)
    except (ImportError, InputError):
        return None
    location = np.array((latitude, longitude), np.float32)
    return location if np.isfinite(location).all() else None


def dates_of(view: RasterView) -> NDArray[np.float32] | None:
    """Return the year and the day of the year for each date of an input. January 1 is day 0.

    Returns:
        float32 [frames, 2], or None if the date of a frame is unknown.

    """
    dates = view.dates
    if dates is None:
        return None
    return np.array([(day.year, day.timetuple().tm_yday - 1) for day in dates], np.float32)


@lru_cache(maxsize=64)
def _to_geographic(crs: str) -> Any:
    from pyproj import Transformer

    return Transformer.from_crs(proj_crs(crs), "EPSG:4326", always_xy=True)
