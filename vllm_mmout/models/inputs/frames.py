"""Split an input with several dates into the files of each date, and sort the dates chronologically."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from vllm_mmout.errors import InputError
from vllm_mmout.geo import date_of_file_item, date_of_items, date_of_name, folders_in, rasters_in
from vllm_mmout.models.inputs.catalogued import CataloguedInput
from vllm_mmout.models.inputs.input_forms import as_folder

if TYPE_CHECKING:
    from vllm_mmout.geo import Layer

_SHOWN = 12
"""Maximum number of dates that an error message lists."""
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class FilesOfDate:
    """Files of one date in a folder that has several dates. There may be a file for each band."""

    folder: Path
    date: date
    files: tuple[Path, ...]

    @property
    def name(self) -> str:
        """Name of the first file."""
        return self.files[0].name


def files_by_date(files: Sequence[Path], count: int) -> Sequence[Path | FilesOfDate]:
    """Group the files of a folder by the date in their names. ``count`` is the number of dates that the model takes.

    HLS, for example, is downloaded as a file for each band and date. If the names do not have exactly ``count``
    different days, return the files unchanged. Each file is then treated as a date.
    """
    if len(files) <= count:
        return files
    days: dict[date | None, list[Path]] = {}
    for file in files:
        days.setdefault(date_of_name(file.name), []).append(file)
    if None in days or len(days) != count:
        return files
    return [FilesOfDate(files[0].parent, day, tuple(group)) for day, group in days.items() if day is not None]


@dataclass(frozen=True, slots=True)
class Frame:
    """Bands of an input from one acquisition date, and the dates that their files state.

    The dates in the metadata, in the names, and in a TIFF tag are separate attributes, because they may differ.
    """

    layers: list[Layer]
    name: str
    metadata_date: date | None
    """Date in the metadata of the frame's first file, or None if the metadata lacks a date."""
    name_date: date | None
    """Date in the name of the file or folder, or None.

    If a folder's name lacks a date, this is the date in the name of the folder's first file.
    """
    rough_date: date | None
    """Date for sorting the frames, or None if it is unknown. A month or year in a file name counts as its first day.

    An exact date in the metadata or in a name is preferred.
    """
    tiff_date: date | None
    """Date in the TIFF tag TIFFTAG_DATETIME, or None if the tag is missing. It may be the acquisition date, or the date
    on which the file was written."""

    @classmethod
    def of(cls, data: Any, layers: list[Layer]) -> Frame:
        """Create a `Frame` from the bands ``layers`` of one date. The date is read from file names and metadata."""
        raster = layers[0].raster
        inside = PurePath(raster.name).name
        name = data.name if isinstance(data, Path | FilesOfDate | CataloguedInput) else inside
        items, named = date_of_items(raster.metadata), date_of_name(name) or date_of_name(inside)
        coarse = items or named or date_of_name(name, coarse=True)
        return cls(layers, name, items, named, coarse, date_of_file_item(raster.metadata))


def in_order_of_dates(frames: Sequence[Frame], folder: Path, notes: list[str]) -> list[Frame]:
    """Return the frames of a folder in chronological order. Raise InputError if the order is unknown.

    If the order is doubtful, a sentence about it is added to ``notes``.
    """
    items, named = ([getattr(frame, source) for frame in frames] for source in ("metadata_date", "name_date"))
    if _distinct(items) and _distinct(named) and _order_of(items) != _order_of(named):
        raise InputError(
            f"the dates in the names of the files in {folder} have another order than those in their metadata:"
            f" {_listed(frames, named)} by name; {_listed(frames, items)} by metadata. Give the dates in a list, in"
            " their order"
        )
    dates = [frame.metadata_date or frame.name_date for frame in frames]
    for days in (dates, [frame.rough_date for frame in frames]):
        if all(days):
            if not _distinct(days):
                raise InputError(
                    f"{folder} holds two inputs of one date: {_listed(frames, days)}; the model takes one for each"
                    " date. Remove one, or give those meant in a list, in their order"
                )
            return _sorted(frames, days)
    if _distinct(written := [frame.tiff_date for frame in frames]):
        notes.append(
            f"The dates in {folder} were put into the order of TIFFTAG_DATETIME, which may be when the files were"
            f" written: {_listed(_sorted(frames, written), sorted(day for day in written if day))}; give them in a list"
            " for another order."
        )
        return _sorted(frames, written)
    if _are_numbered([frame.name for frame in frames]):
        notes.append(
            f"The dates in {folder} were taken in the order of the numbers in their names, as their dates are unknown:"
            f" {', '.join(frame.name for frame in frames)}; give them in a list for another order."
        )
        return list(frames)
    raise InputError(
        f"the dates of the files in {folder} are unknown: {_listed(frames, dates)}. Name them with their dates"
        " (2020-01-31), or give them in a list, the earliest first"
    )


def note_order(frames: Sequence[Frame], notes: list[str]) -> None:
    """Add a note for the user to ``notes`` if the user gave the frames in an order that is not chronological."""
    days = [frame.metadata_date or frame.name_date for frame in frames]
    known_days = [day for day in days if day is not None]
    if len(known_days) == len(days) and any(day <= before for before, day in pairwise(known_days)):
        notes.append(
            f"The dates were taken in the order given, which is not chronological: {_listed(frames, days)}; give the"
            " earliest first if the model was trained that way."
        )


def miscounted(dates: Sequence[Any], model: str, count: int) -> InputError:
    """Return the error for an input with a wrong number of dates. The model requires ``count`` dates."""
    paths = [frame for frame in dates if isinstance(frame, Path | FilesOfDate)]
    listed = [_shown(frame.name, date_of_name(frame.name, coarse=True)) for frame in paths]
    more = [f"and {len(listed) - _SHOWN} more"] if len(listed) > _SHOWN else []
    listing = f": {', '.join(listed[:_SHOWN] + more)}" if listed else ""
    return InputError(
        f"the input has {len(dates)} date{'s' * (len(dates) != 1)}, model {model!r} takes {count}{listing}; give one"
        " file, folder or list of files for each"
    )


def _distinct(days: Sequence[date | None]) -> bool:
    return None not in days and len(set(days)) == len(days)


def _sorted(frames: Sequence[Frame], days: Sequence[date | None]) -> list[Frame]:
    return [frames[number] for number in _order_of(days)]


def _order_of(days: Sequence[date | None]) -> list[int]:
    return sorted(range(len(days)), key=lambda number: days[number] or date.min)


def _are_numbered(names: Sequence[str]) -> bool:
    """Return whether names differ only in one number, for example "t1.tif" and "t2.tif"."""
    numbers = [_NUMBER.findall(name) for name in names]
    alike = len({_NUMBER.sub("#", name) for name in names}) == 1
    return alike and sum(len(set(column)) > 1 for column in zip(*numbers, strict=alike)) == 1


def _listed(frames: Sequence[Frame], days: Sequence[date | None]) -> str:
    return ", ".join(_shown(frame.name, day) for frame, day in zip(frames, days, strict=True))


def _shown(name: str, day: date | None) -> str:
    return f"{name} ({day or 'no date'})"


def dates_of(data: Any, frames: int) -> Sequence[Any] | None:
    """Split an input into a list with one item for each date. Return None for a single file or array."""
    if isinstance(data, list | tuple):
        return data
    if isinstance(data, Mapping | CataloguedInput):
        return [data]
    if (folder := as_folder(data)) is None:
        return None
    if files := rasters_in(folder):
        return [folder] if frames == 1 else files_by_date(files, frames)
    return folders_in(folder) or [folder]
