"""Conditions of a STAC search. They are sent to a STAC API, or applied to the items of a static catalogue."""

from __future__ import annotations

import calendar
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo import area_of, area_text, rasterio_crs, same_system
from vllm_mmout.messages import unknown
from vllm_mmout.wings.stac.documents import Json

_DEGREES: Final = "EPSG:4326"
_ALWAYS: Final = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions of a STAC search, such as dates and an area."""

    fields: Mapping[str, Any]
    """Conditions as fields of a search request to a STAC API."""
    period: tuple[datetime, datetime]
    """First and last moment."""

    @classmethod
    def of(
        cls,
        collections: Sequence[str] | None,
        period: str | None,
        bbox: Sequence[float] | None,
        aoi: Any,
        ids: Sequence[str] | None,
    ) -> Filter:
        """Check the arguments of a search, and return its conditions. Skip arguments that are None."""
        if bbox is not None and aoi is not None:
            raise OptionError("bbox and aoi are both given; give one of them", param="bbox")
        if bbox is not None and (len(bbox) != 4 or not -90 <= bbox[1] <= bbox[3] <= 90):
            raise OptionError(f"bbox must be (west, south, east, north) in degrees, got {bbox!r}", param="bbox")
        fields = {
            "collections": collections,
            "datetime": period,
            "bbox": None if bbox is None else [float(side) for side in bbox],
            "intersects": None if aoi is None else _geometry(aoi),
            "ids": ids,
        }
        given = {name: value for name, value in fields.items() if value is not None}
        return cls(given, _ALWAYS if period is None else _period(period))

    def __str__(self) -> str:
        """Return the conditions of the search as text for error messages."""
        parts = [f"{name}={str(value)[:80]}" for name, value in self.fields.items()]
        return ", ".join(parts) or "an empty search"

    def check_static(self, more: Mapping[str, Any]) -> None:
        """Raise OptionError if ``more`` contains a search field. Only a STAC API supports the fields in ``more``."""
        for name in more:
            raise unknown(name, ["collections", "datetime", "bbox", "aoi", "ids"])

    def matches(self, item: Json) -> bool:
        """Return whether a STAC item meets all conditions of the search. Static catalogues are searched in this way."""
        fields = self.fields
        if "collections" in fields and item.get("collection") not in fields["collections"]:
            return False
        if "ids" in fields and item.get("id") not in fields["ids"]:
            return False
        first, last = _of_item(item)
        if first > self.period[1] or last < self.period[0]:
            return False
        if "bbox" in fields and not _overlap(fields["bbox"], _box_of(item)):
            return False
        return "intersects" not in fields or _intersects(fields["intersects"], item)


def _geometry(aoi: Any) -> dict[str, Any]:
    """Convert an area of interest to one GeoJSON MultiPolygon in longitude and latitude."""
    from rasterio.warp import transform_geom

    area = area_of(area_text(aoi))
    if area.crs is None:
        raise OptionError("aoi has no coordinate system, which a search needs; give it in degrees", param="aoi")
    polygons = [polygon for feature in area.features for polygon in feature.geometry["coordinates"]]
    shape: dict[str, Any] = {"type": "MultiPolygon", "coordinates": polygons}
    if same_system(area.crs, _DEGREES):
        return shape
    return dict(transform_geom(rasterio_crs(area.crs), rasterio_crs(_DEGREES), shape))


def _intersects(geometry: Mapping[str, Any], item: Json) -> bool:
    try:
        shapely = importlib.import_module("shapely.geometry")
    except ImportError as error:
        raise OptionError(
            f"aoi in a static catalogue needs shapely ({error}); pip install shapely, or give bbox"
        ) from error
    own = item.get("geometry")
    if own is None:
        return False
    try:
        return bool(shapely.shape(geometry).intersects(shapely.shape(own)))
    except Exception as error:  # shapely raises errors of several classes
        raise InputError(f"the geometry of item {item.get('id')} or the aoi is wrong: {error}") from error


def _box_of(item: Json) -> Sequence[float]:
    box = item.get("bbox")
    if not isinstance(box, list) or len(box) not in {4, 6} or not all(isinstance(side, int | float) for side in box):
        raise InputError(f"item {item.get('id')} has no valid bbox; correct it, or search without bbox")
    half = len(box) // 2
    return [box[0], box[1], box[half], box[half + 1]]


def _overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether two boxes (west, south, east, north) in degrees overlap, also across the antimeridian.

    A box whose west exceeds its east crosses the antimeridian.
    """
    spans = [[(box[0], box[2])] if box[0] <= box[2] else [(box[0], 180.0), (-180.0, box[2])] for box in (one, other)]
    across = any(a[0] <= b[1] and b[0] <= a[1] for a in spans[0] for b in spans[1])
    return across and one[1] <= other[3] and other[1] <= one[3]


def _of_item(item: Json) -> tuple[datetime, datetime]:
    properties = item.get("properties")
    stated = properties if isinstance(properties, Mapping) else {}
    single = stated.get("datetime")
    try:
        return _moment(single or stated.get("start_datetime")), _moment(single or stated.get("end_datetime"))
    except (TypeError, ValueError):
        return _ALWAYS


def _moment(text: Any) -> datetime:
    """Parse an ISO 8601 date and time. A text without a time zone is in UTC."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _period(text: str) -> tuple[datetime, datetime]:
    """Parse a year, month, date, time, or interval "START/END". Return its first and last moment."""
    first, slash, last = text.partition("/")
    try:
        begin = _ALWAYS[0] if slash and first in {"", ".."} else _span(first)[0]
        end = _ALWAYS[1] if slash and last in {"", ".."} else _span(last if slash else first)[1]
    except ValueError as error:
        raise OptionError(
            f'datetime must be a date, "2024-06", or an interval "2024-06-01/2024-06-30", got {text!r} ({error})',
            param="datetime",
        ) from None
    return begin, end


def _span(text: str) -> tuple[datetime, datetime]:
    parts = text.strip().split("-")
    if len(parts) == 3 and len(text.strip()) > 10:
        moment = _moment(text.strip())
        return moment, moment
    year, month, day = (int(part) for part in (*parts, "0", "0")[:3])
    last_month = month or 12
    last = datetime(year, last_month, day or calendar.monthrange(year, last_month)[1], tzinfo=UTC)
    return datetime(year, month or 1, day or 1, tzinfo=UTC), last + timedelta(days=1, microseconds=-1)
