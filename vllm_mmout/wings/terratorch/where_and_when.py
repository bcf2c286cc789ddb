"""Where and when an image was taken, as TerraTorch's models take it: from the request, else from the file."""

from __future__ import annotations

from datetime import date
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError
from vllm_mmout.geo import date_of_raster, proj_crs
from vllm_mmout.models.inputs.raster_view import RasterView


def location_of(view: RasterView) -> NDArray[np.float32] | None:
    """Latitude and longitude in degrees of an input's middle, float32 [2]: as the request or the georeference says.

    In this order, as Prithvi's network and its data sets have it; TerraTorch's plugin sends them the other way round.
    """
    if view.params.location is not None:
        return np.array(view.params.location, np.float32)
    place = view.georeference
    if place is None or place.transform is None or place.crs is None:
        return None
    a, b, c, d, e, f = place.transform
    row, col = (side / 2 for side in view.size)
    try:
        longitude, latitude = _to_geographic(place.crs).transform(a * col + b * row + c, d * col + e * row + f)
    except (ImportError, InputError):
        return None
    found = np.array((latitude, longitude), np.float32)
    return found if np.isfinite(found).all() else None


def dates_of(view: RasterView, frames: int) -> NDArray[np.float32] | None:
    """Year and day of the year, from 0 as in Prithvi's data sets, of each date of an input, float32 [frames, 2].

    The request's, else those of the files (metadata, else their names); None where one says nothing.
    """
    asked = view.params.dates
    if asked is not None:
        if len(asked) != frames:
            raise InputError(
                f"dates has {len(asked)} dates, the model takes {frames}; give one for each", param="dates"
            )
        found: list[date | None] = [date.fromisoformat(one) for one in asked]
    else:
        members = view.raster.members_of(view.bands[:frames])
        found = [date_of_raster(member.metadata, member.name) for member in members]
        if frames > 1 and len({id(member) for member in members}) < frames:
            return None  # one file cannot say when its dates were
    if any(one is None for one in found):
        return None
    days = [(one.year, one.timetuple().tm_yday - 1) for one in found if one is not None]
    return np.array(days, np.float32)


@lru_cache(maxsize=64)
def _to_geographic(crs: str) -> Any:
    from pyproj import Transformer

    return Transformer.from_crs(proj_crs(crs), "EPSG:4326", always_xy=True)
