"""Choose the bands of an input that a model gets: by the request, by the bands' names, or by their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from vllm_mmout.errors import InputError
from vllm_mmout.geo import OTHER_SENSOR, band_key, possible_sensors
from vllm_mmout.models.inputs.band_names import NamedBand, NameMeanings, readings
from vllm_mmout.models.inputs.unpacking import unpacked_layers

if TYPE_CHECKING:
    from vllm_mmout.geo import Layer
    from vllm_mmout.params import OutputParams

_SHOWN = 40
"""Maximum number of bands that an error message lists."""
_ALIKE_SHOWN = 10
"""Maximum number of bands with the same name that an error message lists."""


@dataclass(frozen=True, slots=True)
class BandList:
    """Bands of an input, and how they may be chosen. Bands are numbered from 1."""

    what: str
    """Description of the input in error messages, such as "the input"."""
    bands: tuple[NamedBand, ...]
    usual: tuple[int, ...] = ()
    """Indices (from 0) of the bands that are used by default. Empty if bands can only be chosen by name."""
    numbered: bool = True
    """True if bands may be chosen by number. False for a folder, whose files have an arbitrary order."""
    given: bool = False
    """True if the user listed files, so that the order of the bands is intended."""
    alpha: int | None = None
    """Index (from 0) of the alpha band, or None. Only set for an input of one file."""
    alpha_by_tags: bool = False
    """True if only TIFF tags mark the band as alpha. GDAL tags any fourth uint8 band in this way."""

    def named(self, name: str) -> list[int]:
        """Return the indices of the bands with a name. Case and leading zeros ("B2", "B02") matter only if needed."""
        for form in (str, str.casefold, band_key):
            places = [place for place, band in enumerate(self.bands) if form(name) in map(form, band.names)]
            if places:
                return places
        return []

    def listed(self, places: Sequence[int]) -> str:
        """Return the names of bands, given by index, as text for a message."""
        names = ["alpha by its tags" if place == self.alpha else str(self.bands[place]) for place in places]
        return ", ".join(names[:_SHOWN] + [f"and {len(names) - _SHOWN} more"] * (len(names) > _SHOWN))

    def __str__(self) -> str:
        """Return the number of bands and their names as text."""
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
    """Choice of the bands that a model gets: by the request, else by name, else all bands in their order.

    Names match if they are equal or mean the same band (`vllm_mmout.geo.meanings`). The input is refused if its names
    contradict its order, or if they fit two sensors with different results.
    """

    model: str
    wanted: tuple[str, ...]
    """Names of the bands that the model takes, in the model's order."""
    params: OutputParams
    one_for_all: bool = False
    """True if an input with a single band is used for all bands of the model, for example grey for red, green and
    blue."""
    noted: list[str] = field(default_factory=list)
    """Notes for the user about assumptions made in the choice of bands."""
    unpack: Callable[[Sequence[Layer], OutputParams], list[Layer]] = unpacked_layers
    """Function that applies scale and offset to the chosen bands."""

    @property
    def asked(self) -> tuple[int | str, ...] | None:
        """Bands in the request, as numbers (from 1) or names. None if the request does not choose bands."""
        if self.params.indices is not None:
            return tuple(index + 1 for index in self.params.indices)
        return self.params.bands

    @property
    def said_by(self) -> str | None:
        """Name of the option that chooses the bands, "bands" or "indices", or None if neither is set."""
        return None if self.asked is None else "bands" if self.params.indices is None else "indices"

    def places(self, bands: BandList, dates: int = 1) -> list[int]:
        """Return the indices (from 0) of the bands that the model gets, date by date for ``dates`` dates."""
        if (requested := self.asked) is not None:
            try:
                places = [_band_index(band, bands) for band in requested]
            except InputError as error:
                raise InputError(str(error), param=self.said_by) from None
            if len(places) != dates * len(self.wanted):
                raise self._miscounted(bands, len(places), dates)
            return places
        named = [bands.named(name) for name in self.wanted]
        if dates == 1 and all(len(indices) == 1 for indices in named) and self._of_one_sensor(bands, named):
            return [indices[0] for indices in named]
        read = list(readings(self.wanted, bands.bands))
        by_name = [reading.by_name(dates) for reading in read]
        if by_name[0] is not None and all(indices == by_name[0] for indices in by_name):
            self._note(bands, read[0], by_name[0])
            return by_name[0]
        if not bands.usual:
            doubtful = any(by_name) and all(len(indices) < 2 for indices in named)
            raise self._sensor_error(bands, read) if doubtful else self._not_named(bands, named, read)
        return self._in_order(bands, read, dates, doubtful=any(by_name))

    def _in_order(self, bands: BandList, read: Sequence[NameMeanings], dates: int, *, doubtful: bool) -> list[int]:
        """Return the default bands in their order. Raise InputError if the bands' names contradict that order.

        ``doubtful`` is True if names identify the bands for some sensors only.
        """
        places, count = list(bands.usual), dates * len(self.wanted)
        if bands.alpha is not None and bands.alpha_by_tags and len(places) + 1 == count:
            places = sorted([*places, bands.alpha])
            number = bands.alpha + 1
            self.noted.append(
                f"Band {number} of {bands.what} is tagged as alpha, and was taken for {self.wanted[-1]!r}, as the model"
                f" takes {count} bands; choose others with bands=[...]."
            )
        if self.one_for_all and len(places) == 1:
            return places * len(self.wanted)
        if len(places) != count:
            raise self._sensor_error(bands, read) if doubtful else self._miscounted(bands, len(places), dates)
        wrong = [reading.contradicts(places) for reading in read]
        if any(wrong) and (all(wrong) or not bands.given):
            raise self._contradicted(bands, places) if all(wrong) and not doubtful else self._sensor_error(bands, read)
        if any(wrong):
            self.noted.append(
                f"{_capital(bands.what)} was taken in its order for {', '.join(self.wanted)}; its names"
                f" ({bands.listed(places)}) may be those of {_sensors(read)}, which number bands differently."
            )
        self._note(bands, read[wrong.index(False)], places)
        return places

    def _of_one_sensor(self, bands: BandList, named: Sequence[Sequence[int]]) -> bool:
        """Return whether the bands that are named like the model's bands can come from the model's sensor.

        Equal names of different sensors may mean different bands, such as B5 of Landsat and Sentinel-2.
        """
        own = set(possible_sensors(self.wanted))
        file_sensors = {bands.bands[place].sensor for places in named for place in places} - {None, OTHER_SENSOR}
        return own == {""} or not file_sensors or bool(own & file_sensors)

    def _note(self, bands: BandList, reading: NameMeanings, places: Sequence[int]) -> None:
        """Record the assumptions made about the chosen bands as notes for the user."""
        if reading.coloured(places) and list(places) != sorted(places):
            numbers = ", ".join(str(place + 1) for place in places)
            self.noted.append(
                f"Bands {numbers} of {bands.what} were taken for {', '.join(self.wanted)} by their colour"
                " interpretation; choose others with bands=[...]."
            )
        for number, place in reading.near(places):
            self.noted.append(
                f"Band {str(bands.bands[place])!r} of {bands.what} was taken for {self.wanted[number]!r}, the other"
                " near infrared; choose another with bands=[...]."
            )
        of_one_file = len(bands.bands) > 1 and not any(band.file for band in bands.bands)
        if of_one_file and places == list(bands.usual) and (others := reading.unknown(places)):
            self.noted.append(
                f"Bands {bands.listed(others)} of {bands.what} were taken by their position, as the model's names"
                f" differ ({', '.join(self.wanted)}); choose with bands=[...]."
            )

    def _contradicted(self, bands: BandList, places: Sequence[int]) -> InputError:
        return InputError(
            f"{bands.what} says that its bands are {bands.listed(places)}, and in this order they would be taken for"
            f" {', '.join(self.wanted)}, which model {self.model!r} takes; choose them with bands=[...], in the model's"
            f" order. {_capital(bands.what)} has {bands}"
        )

    def _sensor_error(self, bands: BandList, read: Sequence[NameMeanings]) -> InputError:
        """Return the error for band numbers that mean different bands on different sensors."""
        return InputError(
            f"the names of the bands may be those of {_sensors(read)}, which number them differently, and the sensor is"
            f" unknown: {bands.what} has {bands}; model {self.model!r} takes {', '.join(self.wanted)}. Choose them"
            " with bands=[...], in the model's order, or name the sensor in the file's name or its item SENSOR"
        )

    def _not_named(self, bands: BandList, named: Sequence[Sequence[int]], read: Sequence[NameMeanings]) -> InputError:
        meant = [indices or read[0].found(number) for number, indices in enumerate(named)]
        for name, indices in zip(self.wanted, meant, strict=True):
            if len(indices) > 1:
                return _ambiguous(name, indices, bands)
        missing = ", ".join(repr(name) for name, indices in zip(self.wanted, meant, strict=True) if not indices)
        return InputError(
            f"{bands.what} has no band {missing}, which model {self.model!r} takes ({', '.join(self.wanted)}); it has"
            f" {bands}. Choose with bands=[...], by name{' or by number from 1' if bands.numbered else ''}"
        )

    def _miscounted(self, bands: BandList, count: int, dates: int) -> InputError:
        subject = f"{bands.what} has" if self.asked is None else f"{self.said_by} chooses"
        each, several = len(self.wanted), ""
        takes, names = f"model {self.model!r} takes {dates * each}", ", ".join(self.wanted)
        if dates > 1:
            takes += f", {dates} dates of {each} bands, date by date"
            several = f" ({count // each} dates)" * (count % each == 0)
        alpha = f" beside band {bands.alpha + 1}, which is alpha" if bands.alpha is not None and not self.asked else ""
        listing = f"; {bands.what} has {bands}" if any(band.names for band in bands.bands) else ""
        together = "; files of a band each are one input in a list inside the list, [[...]], or in a folder"
        return InputError(
            f"{subject} {count} band{'s' * (count != 1)}{several}{alpha}, {takes} ({names}); choose with bands=[...],"
            f" which counts from 1{together * (len(bands.bands) == 1 < each)}{listing}",
            param=self.said_by,
        )


def _sensors(read: Sequence[NameMeanings]) -> str:
    return " and ".join(dict.fromkeys(sensor for reading in read for sensor in reading.sensors if sensor))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _band_index(band: int | str, bands: BandList) -> int:
    if isinstance(band, str):
        indices = bands.named(band) or _indices_by_meaning(band, bands)
        if len(indices) > 1:
            raise _ambiguous(band, indices, bands)
        if not indices:
            raise InputError(f"band {band!r} does not exist; {bands.what} has {bands}")
        return indices[0]
    if not bands.numbered:
        raise InputError(
            f"band {band} is a number, and the files of a folder have no order; choose by name with bands=[...], or"
            f" give the files in a list; {bands.what} has {bands}"
        )
    if isinstance(band, bool) or not isinstance(band, int | np.integer) or not 1 <= band <= len(bands.bands):
        raise InputError(f"band {band} does not exist (bands count from 1); {bands.what} has {bands}")
    return int(band) - 1


def _indices_by_meaning(name: str, bands: BandList) -> list[int]:
    """Return the indices of the bands that a name may mean, or an empty list if that depends on the sensor."""
    index_lists = [reading.found(0) for reading in readings((name,), bands.bands)]
    return index_lists[0] if all(places == index_lists[0] for places in index_lists) else []


def _ambiguous(name: str, indices: Sequence[int], bands: BandList) -> InputError:
    shown, more = indices[:_ALIKE_SHOWN], [f"{len(indices) - _ALIKE_SHOWN} more"] * (len(indices) > _ALIKE_SHOWN)
    files = [bands.bands[place].file for place in shown]
    numbers = ", ".join([str(place + 1) for place in shown] + more)
    where = f", in {' and '.join(files + more)}" if any(files) else ""
    problem = f"is {'that' if where else 'the description'} of {len(indices)} bands{where}"
    if not bands.numbered:
        return InputError(f"band {name!r} {problem}; give the files meant in a list, or by name in a dict; {bands}")
    return InputError(f"band {name!r} {problem}; choose by number with bands=[...] (they are {numbers}); {bands}")
