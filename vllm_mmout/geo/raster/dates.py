"""Find the acquisition date of a raster in its metadata items and its name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import PurePath
from typing import Final

_ITEMS: Final = (
    "ACQUISITIONDATETIME",
    "ACQUISITION_DATE",
    "ACQUISITION_DATETIME",
    "DATE_ACQUIRED",
    "SENSING_TIME",
    "DATATAKE_1_DATATAKE_SENSING_START",
    "PRODUCT_START_TIME",
)
"""Names of metadata items that hold the acquisition time of an image."""
FILE_ITEM: Final = "TIFFTAG_DATETIME"
"""Metadata item with the date of a file, which may be the day of writing instead of the day of acquisition."""

_MONTH, _DAY = r"(?P<month>0[1-9]|1[0-2])", r"(?P<day>0[1-9]|[12]\d|3[01])"
_NAMES: Final = tuple(
    re.compile(pattern)
    for pattern in (
        rf"_V(?P<year>\d{{4}}){_MONTH}{_DAY}T\d{{6}}",  # Sentinel-2 until 2016, whose other date is of processing
        r"(?<!\d)(?P<year>\d{4})(?P<day_of_year>[0-3]\d\d)T\d{6}(?!\d)",  # HLS
        r"(?<![A-Z])L[COTEM]\d\d{6}(?P<year>\d{4})(?P<day_of_year>[0-3]\d\d)[A-Z]{3}\d\d",  # Landsat until 2017
        r"\.A(?P<year>\d{4})(?P<day_of_year>[0-3]\d\d)\.",  # MODIS
        rf"(?<!\d)(?P<year>\d{{4}}){_MONTH}{_DAY}(?=T\d{{4,6}}|[_.-]|$)",  # Sentinel, Landsat, Planet
        rf"(?<!\d)(?P<year>\d{{4}})[-_.]{_MONTH}[-_.]{_DAY}(?!\d)",
    )
)
_COARSE: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?<!\d)(?P<year>(?:19|20)\d\d)(?P<day_of_year>[0-3]\d\d)(?!\d)",
        r"(?<!\d)(?P<year>(?:19|20)\d\d)[-_.](?P<month>0?[1-9]|1[0-2])[-_.](?P<day>0?[1-9]|[12]\d|3[01])(?!\d)",
        r"(?<!\d)(?P<year>(?:19|20)\d\d)[-_.]?(?P<month>0[1-9]|1[0-2])(?!\d)",
        r"(?<!\d)(?P<year>(?:19|20)\d\d)[-_.](?P<month>[1-9])(?!\d)",
        r"(?<!\d)(?P<year>(?:19|20)\d\d)(?!\d)",
    )
)
"""Patterns of incomplete or uncertain dates in file names, such as "2019" or "2020-03". Such dates are used only to
sort files by time."""
_TEXT: Final = re.compile(r"\s*(?P<year>\d{4})[-:/]?(?P<month>\d\d)[-:/]?(?P<day>\d\d)(?!\d)")
_EARLIEST: Final = 1950


def date_of_items(metadata: Mapping[str, str]) -> date | None:
    """Return the acquisition date that a raster's metadata items state, or None."""
    items = {key.upper(): value for key, value in metadata.items()}
    return _first(_TEXT.match(items[item]) for item in _ITEMS if item in items)


def date_of_file_item(metadata: Mapping[str, str]) -> date | None:
    """Return the date in the item TIFFTAG_DATETIME, or None. This date may be the day on which the file was written."""
    return _first([_TEXT.match(metadata.get(FILE_ITEM, ""))])


def date_of_name(name: str, *, coarse: bool = False) -> date | None:
    """Return the acquisition date in the name of a file or folder, or None if it holds no date.

    With ``coarse``, a month or a year in the name ("2020-03", "ndvi_2019") counts as its first day.
    """
    last = PurePath(name).name
    patterns = _NAMES + (_COARSE if coarse else ())
    return next((day for pattern in patterns if (day := _first(pattern.finditer(last)))), None)


def date_of_raster(metadata: Mapping[str, str], name: str) -> date | None:
    """Return a raster's acquisition date from its metadata or its name.

    If neither has a date, return the date in the item TIFFTAG_DATETIME, or None if the item is missing.
    """
    return date_of_items(metadata) or date_of_name(name) or date_of_file_item(metadata)


def days_of_times(text: str) -> list[date]:
    """Return the dates (UTC) of a text with an ISO 8601 time on each line. Return [] if a line is not such a time."""
    try:
        times = [datetime.fromisoformat(line) for line in text.split("\n") if line]
        return [(time if time.tzinfo is None else time.astimezone(UTC)).date() for time in times]
    except (ValueError, OverflowError):
        return []


def _first(matches: Iterable[re.Match[str] | None]) -> date | None:
    """Return the date of the first match that is a valid calendar date, or None."""
    for match in matches:
        if match is None:
            continue
        parts = {name: int(number) for name, number in match.groupdict().items()}
        try:
            if "day_of_year" in parts:
                day = date(parts["year"], 1, 1) + timedelta(days=parts["day_of_year"] - 1)
                if day.year != parts["year"]:
                    continue
            else:
                day = date(parts["year"], parts.get("month", 1), parts.get("day", 1))
        except (ValueError, OverflowError):
            continue
        if day.year >= _EARLIEST:
            return day
    return None
