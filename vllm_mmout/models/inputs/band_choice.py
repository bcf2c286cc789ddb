"""BandChoice: which bands of an input are those of a model, by the request or by their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vllm_mmout.errors import InputError
from vllm_mmout.geo import band_key

if TYPE_CHECKING:
    from vllm_mmout.params import OutputParams

_SHOWN = 40
"""Bands that a message lists."""
_ALIKE_SHOWN = 10
"""Bands of one name that it lists."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One band that an input has."""

    names: tuple[str, ...] = ()
    """What it may be called by, the usual name first; none for a band without a description."""
    file: str = ""
    """The file that it comes from, where there are several."""


@dataclass(frozen=True, slots=True)
class BandList:
    """The bands of an input, numbered from 1."""

    what: str
    """What the input is called in messages, as "the input"."""
    bands: tuple[Listed, ...]
    usual: tuple[int, ...] = ()
    """Indices, from 0, of the bands that are taken where nothing says which; none where only names can say it."""
    numbered: bool = True
    """Whether a band may be chosen by its number: files of a folder have no order of their own, and the first of them
    may be a quality band."""

    def named(self, name: str) -> list[int]:
        """Indices of the bands of a name: spelled so, else in small or capital letters, else "B2" for "B02"."""
        for form in (str, str.casefold, band_key):
            there = [place for place, band in enumerate(self.bands) if form(name) in map(form, band.names)]
            if there:
                return there
        return []

    def __str__(self) -> str:
        listed = [
            f"{f'{number} ' * self.numbered}{band.names[0]!r}{f' ({band.file})' if band.file else ''}"
            for number, band in enumerate(self.bands, start=1)
            if band.names
        ]
        more = [f"and {len(listed) - _SHOWN} more"] if len(listed) > _SHOWN else []
        count = f"{len(self.bands)} band{'s' * (len(self.bands) != 1)}"
        return f"{count}: {', '.join(listed[:_SHOWN] + more)}" if listed else f"{count} without descriptions"


@dataclass(frozen=True, slots=True)
class BandChoice:
    """The bands that a request names, else those of the model's names, else all in their order."""

    model: str
    wanted: tuple[str, ...]
    """Names of the model's bands, in its order."""
    params: OutputParams
    one_for_all: bool = False
    """Whether the one band of an input stands for all of the model's, as grey does for colours."""

    @property
    def asked(self) -> tuple[int | str, ...] | None:
        """Numbers, from 1, and names that the request gives."""
        if self.params.indices is not None:
            return tuple(index + 1 for index in self.params.indices)
        return self.params.bands

    @property
    def said_by(self) -> str | None:
        """The option that names the bands, None where none does."""
        return None if self.asked is None else "bands" if self.params.indices is None else "indices"

    def places(self, there: BandList, dates: int = 1) -> list[int]:
        """Indices, from 0, of the chosen bands; ``dates`` times as many as the model's."""
        if (asked := self.asked) is not None:
            try:
                places = [_place(band, there) for band in asked]
            except InputError as error:
                raise InputError(str(error), param=self.said_by) from None
        else:
            named = [there.named(name) for name in self.wanted]
            if dates == 1 and all(len(found) == 1 for found in named):
                # The input says which is which; its own order would be silently wrong where it differs.
                return [found[0] for found in named]
            if not there.usual:
                raise self._not_named(there, named)
            places = list(there.usual)
            if self.one_for_all and len(places) == 1:
                places *= len(self.wanted)
        if len(places) != dates * len(self.wanted):
            raise self._miscounted(there, len(places), dates)
        return places

    def _not_named(self, there: BandList, named: Sequence[Sequence[int]]) -> InputError:
        for name, found in zip(self.wanted, named, strict=True):
            if len(found) > 1:
                return _ambiguous(name, found, there)
        missing = ", ".join(repr(name) for name, found in zip(self.wanted, named, strict=True) if not found)
        return InputError(
            f"{there.what} has no band {missing}, which model {self.model!r} takes ({', '.join(self.wanted)}); it has"
            f" {there}. Choose with bands=[...], by name{' or by number from 1' if there.numbered else ''}"
        )

    def _miscounted(self, there: BandList, count: int, dates: int) -> InputError:
        what = f"{there.what} has" if self.asked is None else f"{self.said_by} chooses"
        each, several = len(self.wanted), ""
        takes, names = f"model {self.model!r} takes {dates * each}", ", ".join(self.wanted)
        if dates > 1:
            takes += f", {dates} dates of {each} bands, date by date"
            several = f" ({count // each} dates)" * (count % each == 0)
        listing = f"; {there.what} has {there}" if any(band.names for band in there.bands) else ""
        together = "; files of a band each are one input in a list inside the list, [[...]], or in a folder"
        return InputError(
            f"{what} {count} band{'s' * (count != 1)}{several}, {takes} ({names}); choose with bands=[...],"
            f" which counts from 1{together * (len(there.bands) == 1 < each)}{listing}",
            param=self.said_by,
        )


def _place(band: int | str, there: BandList) -> int:
    if isinstance(band, str):
        found = there.named(band)
        if len(found) > 1:
            raise _ambiguous(band, found, there)
        if not found:
            raise InputError(f"band {band!r} does not exist; {there.what} has {there}")
        return found[0]
    if not there.numbered:
        raise InputError(
            f"band {band} is a number, and the files of a folder have no order; choose by name with bands=[...], or"
            f" give the files in a list; {there.what} has {there}"
        )
    if isinstance(band, bool) or not isinstance(band, int | np.integer) or not 1 <= band <= len(there.bands):
        raise InputError(f"band {band} does not exist (bands count from 1); {there.what} has {there}")
    return int(band) - 1


def _ambiguous(name: str, found: Sequence[int], there: BandList) -> InputError:
    shown, more = found[:_ALIKE_SHOWN], [f"{len(found) - _ALIKE_SHOWN} more"] * (len(found) > _ALIKE_SHOWN)
    files = [there.bands[place].file for place in shown]
    numbers = ", ".join([str(place + 1) for place in shown] + more)
    where = f", in {' and '.join(files + more)}" if any(files) else ""
    whose = f"is {'that' if where else 'the description'} of {len(found)} bands{where}"
    if not there.numbered:
        return InputError(f"band {name!r} {whose}; give the files meant in a list, or by name in a dict; {there}")
    return InputError(f"band {name!r} {whose}; choose by number with bands=[...] (they are {numbers}); {there}")
