"""`RasterSeries`: rasters of several dates on one grid, which a Zarr store holds along a time axis."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, ClassVar

from vllm_mmout.errors import InputError
from vllm_mmout.outputs.base import Savable
from vllm_mmout.outputs.differences import difference
from vllm_mmout.outputs.formats import FORMATS, formats_of
from vllm_mmout.outputs.raster import RasterOutput

_ITEM_PREFIX = "MMOUT_"
"""Name prefix of the metadata items that this package writes. The value of each of these items is a list of lines."""


class RasterSeries(Savable):
    """Rasters of several dates on one grid, such as maps or embeddings, that are saved as one Zarr store.

    Args:
        rasters: the raster of each date. A date is a ``date``, or a text such as "2024-06-01".

    Raises:
        InputError: there are no rasters, a date is malformed, or two rasters differ in more than their pixels, their
            metadata, and whether they have nodata.

    """

    output_kinds: ClassVar[tuple[str, ...]] = ("series",)
    formats: ClassVar[dict[str, str]] = formats_of("series")

    def __init__(self, rasters: Mapping[date, RasterOutput] | Mapping[str, RasterOutput]) -> None:
        by_date = {_date_of(day): raster for day, raster in rasters.items()}
        if not by_date or len(by_date) < len(rasters):
            raise InputError(f"a series needs a raster for each date, got the dates {', '.join(map(str, rasters))!r}")
        self.rasters = {day: by_date[day] for day in sorted(by_date)}
        """The raster of each date, the earliest date first."""
        (first_day, first), *others = self.rasters.items()
        for day, other in others:
            if (found := _difference(first, other)) is not None:
                name, mine, its = found
                raise InputError(
                    f"the rasters of {first_day} and {day} differ in {name}, {mine} and {its}, so they cannot be one"
                    " series; make them on one grid by one model"
                )

    @property
    def metadata(self) -> dict[str, str]:
        """Metadata items that have equal values in all rasters, and the items of this package, named "MMOUT_...".

        An item "MMOUT_..." holds the lines that the item has in any of the rasters, each line once.
        """
        each = [raster.metadata for raster in self.rasters.values()]
        items = {name: text for name, text in each[0].items() if all(other.get(name) == text for other in each)}
        for name in dict.fromkeys(name for metadata in each for name in metadata if name.startswith(_ITEM_PREFIX)):
            lines = (line for metadata in each for line in metadata.get(name, "").split("\n") if line)
            items[name] = "\n".join(dict.fromkeys(lines))
        return items

    def _write(self, path: Path, name: str, options: dict[str, Any]) -> None:
        FORMATS[name].write(self, path, options)


def _date_of(day: date | str) -> date:
    try:
        return date.fromisoformat(str(day))  # refuses the time of day of a datetime
    except ValueError:
        raise InputError(f'the date of a raster in a series must be like "2024-06-01", got {day!r:.60}') from None


def _difference(first: RasterOutput, other: RasterOutput) -> tuple[str, Any, Any] | None:
    """Return the first property that must be equal in a series of rasters but differs: (name, value, other value).

    Return None if all such properties are equal.
    """
    for name in ("height", "width", "crs", "transform"):
        mine, its = getattr(first, name), getattr(other, name)
        if mine != its:
            return name, mine, its
    is_unset = None in (first.nodata, other.nodata)
    return difference(first, other, but=("nodata",) if is_unset else ())
