"""Find the acquisition date of each frame of an input. Dates in the request override dates in the files."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

from vllm_mmout.errors import InputError
from vllm_mmout.geo import date_of_raster

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_mmout.geo import OpenRaster


def dates_of(raster: OpenRaster, bands: Sequence[int], texts: Sequence[str] | None) -> tuple[date, ...] | None:
    """Return the acquisition date of each frame of an input, or None if one of the dates is unknown.

    The dates are those of the request. Without them, they are those that the files state: for each band, as in a Zarr
    store with a time axis, or for each file in its metadata (also those of its catalogue's record) or its name.

    Args:
        raster: the open input.
        bands: number (from 1) of the model's first band at each date.
        texts: the ``dates`` of the request, or None.

    Raises:
        InputError: the request has another number of dates than the model takes.

    """
    count = len(bands)
    if texts is not None:
        if len(texts) != count:
            raise InputError(
                f"dates has {len(texts)} dates, and the model takes {count}; give a date for each frame", param="dates"
            )
        return tuple(map(date.fromisoformat, texts))
    members = raster.members_of(bands)
    if raster.days:
        days = [raster.days[band - 1] for band in bands]
    elif len({id(member) for member in members}) < count:
        return None  # a file with several dates does not tell which date each band has
    else:
        days = [date_of_raster(member.metadata, member.name) for member in members]
    known = tuple(day for day in days if day is not None)
    return known if len(known) == count else None
