"""Read the times along an axis of a Zarr array from CF attributes (CF conventions, 4.4)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import numpy as np

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.zarr.array import ZarrArray

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.zarr.nodes import Node

_UNITS: Final = re.compile(
    r"(?P<unit>day|hour|minute|second|millisecond|microsecond|nanosecond)s?\s+since\s+(?P<start>.+)", re.IGNORECASE
)
_SECONDS: Final = {
    "day": 86400.0,
    "hour": 3600.0,
    "minute": 60.0,
    "second": 1.0,
    "millisecond": 1e-3,
    "microsecond": 1e-6,
    "nanosecond": 1e-9,
}
_CALENDARS: Final = ("standard", "gregorian", "proleptic_gregorian")


def times_of(group: Node | None, dim: str | None, count: int) -> list[datetime] | None:
    """Return the times along an axis, or None if the store does not define them in a supported way.

    Args:
        group: the group of the array.
        dim: name of the axis.
        count: number of times.

    """
    node = None if group is None or dim is None else group.child(dim)
    units = None if node is None or not node.is_array else node.attributes.get("units")
    match = _UNITS.fullmatch(units.strip()) if isinstance(units, str) else None
    if node is None or match is None or node.attributes.get("calendar", "standard") not in _CALENDARS:
        return None
    array = ZarrArray(node) if node.shape in ((count,), ()) else None
    if array is None or array.dtype.kind not in "iuf":
        return None
    try:
        start = datetime.fromisoformat(match["start"].strip().removesuffix("UTC").strip())
        start = start if start.tzinfo is not None else start.replace(tzinfo=UTC)
        seconds = array.vector().astype(np.float64) * _SECONDS[match["unit"].lower()]
        return [start + timedelta(seconds=float(value)) for value in seconds]
    except (ValueError, OverflowError):
        return None


def order_of(times: list[datetime] | None, count: int, name: str) -> list[int]:
    """Return the indices along the time axis, sorted by time. If ``times`` is None, keep the stored order."""
    if times is None:
        return list(range(count))
    if len(set(times)) < count:
        raise InputError(
            f"{name} holds one time twice: {', '.join(f'{time:%Y-%m-%d}' for time in times[:12])}; remove one"
        )
    return sorted(range(count), key=lambda number: times[number])
