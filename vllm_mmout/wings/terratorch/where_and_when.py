"""Where and when an image was taken, as TerraTorch's models take it: from the request, else from the file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date
from functools import lru_cache
from pathlib import PurePath
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError
from vllm_mmout.geo import proj_crs
from vllm_mmout.models.inputs.raster_view import RasterView

_ITEMS: Final = (
    "ACQUISITIONDATETIME",
    "ACQUISITION_DATE",
    "DATE_ACQUIRED",
    "SENSING_TIME",
    "DATATAKE_1_DATATAKE_SENSING_START",
    "PRODUCT_START_TIME",
)
"""Metadata items that say when an image was taken."""
_FILE_ITEM: Final = "TIFFTAG_DATETIME"
"""The date of the file, which is asked last."""

_NAMES: Final = (
    re.compile(r"(?<!\d)(?P<year>\d{4})(?P<day_of_year>[0-3]\d\d)T\d{6}(?!\d)"),  # HLS
    re.compile(r"(?<!\d)(?P<year>\d{4})(?P<month>\d\d)(?P<day>\d\d)(?=T\d{6}|[_.-]|$)"),  # Sentinel-2, Landsat
    re.compile(r"(?<!\d)(?P<year>\d{4})[-_](?P<month>\d\d)[-_](?P<day>\d\d)(?!\d)"),
)
_TEXT: Final = re.compile(r"\s*(?P<year>\d{4})[-:/]?(?P<month>\d\d)[-:/]?(?P<day>\d\d)(?!\d)")
_EARLIEST: Final = 1950


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
        found = [_of_file(member.metadata, member.name) for member in members]
        if frames > 1 and len({id(member) for member in members}) < frames:
            return None  # one file cannot say when its dates were
    if any(one is None for one in found):
        return None
    days = [(one.year, one.timetuple().tm_yday - 1) for one in found if one is not None]
    return np.array(days, np.float32)


def _of_file(metadata: Mapping[str, str], name: str) -> date | None:
    items = {key.upper(): value for key, value in metadata.items()}
    texts = [items[item] for item in _ITEMS if item in items]
    found = _first(_TEXT.match(text) for text in texts)
    found = found or _first(pattern.search(PurePath(name).name) for pattern in _NAMES)
    return found or _first([_TEXT.match(items.get(_FILE_ITEM, ""))])


def _first(matches: Iterable[re.Match[str] | None]) -> date | None:
    """The first match that is a day in the calendar."""
    for match in matches:
        if match is None:
            continue
        parts = {name: int(number) for name, number in match.groupdict().items()}
        try:
            if "day_of_year" in parts:
                found = date.fromordinal(date(parts["year"], 1, 1).toordinal() + parts["day_of_year"] - 1)
                if found.year != parts["year"]:
                    continue
            else:
                found = date(parts["year"], parts["month"], parts["day"])
        except ValueError:
            continue
        if found.year >= _EARLIEST:
            return found
    return None


@lru_cache(maxsize=64)
def _to_geographic(crs: str) -> Any:
    from pyproj import Transformer

    return Transformer.from_crs(proj_crs(crs), "EPSG:4326", always_xy=True)
