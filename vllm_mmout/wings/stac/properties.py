"""Read metadata of a STAC item other than bands: coordinate system, transform, size, dates and sensor."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from vllm_mmout.errors import InputError
from vllm_mmout.geo import sensor_of
from vllm_mmout.wings.stac.documents import as_number

if TYPE_CHECKING:
    from vllm_mmout.geo import Affine
    from vllm_mmout.wings.stac.documents import Json


def projection(name: str, asset: Json, properties: Json) -> dict[str, Any]:
    """Return the coordinate system, transform and size of an asset, as keyword arguments of `CataloguedFile`.

    The fields of the item hold for assets that do not have their own.
    """
    stated = {field: asset.get(f"proj:{field}", properties.get(f"proj:{field}")) for field in ("transform", "shape")}
    crs: str | None = None
    for level in (asset, properties):
        code, epsg, wkt = (level.get(f"proj:{field}") for field in ("code", "epsg", "wkt2"))
        if not (isinstance(code, str | None) and isinstance(wkt, str | None) and (epsg is None or _is_integer(epsg))):
            raise InputError(
                f"{name}: proj:code and proj:wkt2 must be texts, and proj:epsg an integer, or null; correct the item"
            )
        crs = crs or code or (wkt if epsg is None else f"EPSG:{epsg}")
    return {"crs": crs, "transform": _transform(name, stated["transform"]), "size": _size(name, stated["shape"])}


def _transform(name: str, value: Any) -> Affine | None:
    if value is None:
        return None
    numbers = [as_number(each) for each in value] if isinstance(value, list) and len(value) in {6, 9} else [None]
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        raise InputError(f"{name}: proj:transform must be a list of 6 or 9 numbers; correct the item")
    a, b, c, d, e, f = known[:6]
    area = a * e - b * d
    if not area or not math.isfinite(area):
        raise InputError(f"{name}: proj:transform {known[:6]} gives pixels without an area; correct the item")
    return a, b, c, d, e, f


def _size(name: str, value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or not all(_is_integer(each) and each > 0 for each in value):
        raise InputError(f"{name}: proj:shape must be [rows, columns], got {str(value)[:60]}; correct the item")
    return value[0], value[1]


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def acquisition_times_of(properties: Json) -> list[str]:
    """Return the acquisition times of a STAC item as ISO 8601 texts: [time], [start, end], or [] if unknown."""
    single = properties.get("datetime")
    texts = [single] if single is not None else [properties.get(f"{end}_datetime") for end in ("start", "end")]
    return [] if None in texts else [str(text) for text in texts]


def days_of(properties: Json) -> tuple[date, date] | None:
    """Return the first and the last day of a STAC item in UTC, or None if the item is undated."""
    texts = acquisition_times_of(properties)
    if not texts:
        return None
    try:
        first, last = _day(texts[0]), _day(texts[-1])
    except (ValueError, OverflowError) as error:
        raise InputError(f"its datetime {str(texts)[:80]} is no date ({error}); correct the item") from None
    return first, last


def _day(text: str) -> date:
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo is None else moment.astimezone(UTC)).date()


def sensor_of_item(name: str, properties: Json) -> str | None:
    """Return the sensor of a STAC item, or None if the sensor is unknown.

    The sensor's name is searched for in the item's platform, constellation and instruments, and then in its id.
    """
    instruments = properties.get("instruments")
    words = [
        properties.get("platform"),
        properties.get("constellation"),
        *(instruments if isinstance(instruments, list) else [instruments]),
    ]
    return sensor_of(name, {"PLATFORM": " ".join(word for word in words if isinstance(word, str))})
