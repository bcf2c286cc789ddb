"""Choose the bands of an input that a model gets: by the request, by the bands' names, or by their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from vllm_mmout.errors import InputError
from vllm_mmout.geo import OTHER_SENSOR, band_key, possible_sensors
from vllm_mmout.models.inputs.band_names import InputBand, NameMeanings, possible_meanings
from vllm_mmout.models.inputs.unpacking import unpacked_layers

if TYPE_CHECKING:
    from vllm_mmout.geo import CloudLayer, Layer
    from vllm_mmout.params import OutputParams

_LISTED = 40
"""Maximum number of bands that an error message lists."""
_ALIKE_LISTED = 10
"""Maximum number of bands that the error message for an ambiguous band name lists."""


@dataclass(frozen=True, slots=True)
class BandList:
    """Bands of an input, and rules for choosing them. Bands are numbered from 1."""

    what: str
    """Description of the input in error messages, such as "the input"."""
    bands: tuple[InputBand, ...]
    defaults: tuple[int, ...] = ()
    """Indices (from 0) of the bands that are used if the request chooses none. Empty if bands can only be chosen by
    name."""
    by_number: bool = True
    """True if a request may choose bands by number. False for a folder of files, because the order of its bands is
    arbitrary."""
    keeps_order: bool = False
    """True if the user gave a list of files, which sets the order of the bands."""
    alpha: int | None = None
    """Index (from 0) of the alpha band, or None. It is only set if the input is a single file."""
    alpha_by_tags: bool = False
    """True if only TIFF tags mark band `alpha` as alpha. The band may hold data, because GDAL sets these tags for any
    fourth uint8 band."""

    def find(self, name: str) -> list[int]:
        """Return the indices of the bands called ``name``. If no band matches, case and leading zeros are ignored."""
        for form in (str, str.casefold, band_key):
            places = [place for place, band in enumerate(self.bands) if form(name) in map(form, band.names)]
            if places:
                return places
        return []

    def names_of(self, places: Sequence[int]) -> str:
        """Return the names of the bands with the indices ``places``, as text for a message."""
        names = ["alpha by its tags" if place == self.alpha else str(self.bands[place]) for place in places]
        return ", ".join(names[:_LISTED] + [f"and {len(names) - _LISTED} more"] * (len(names) > _LISTED))

    def __str__(self) -> str:
        """Return a text with the number of bands and the names of the bands."""
        names = [
            f"{f'{number} ' * self.by_number}{band.names[0]!r}{f' ({band.file})' if band.file else ''}"
            for number, band in enumerate(self.bands, start=1)
            if band.names
        ]
        more = [f"and {len(names) - _LISTED} more"] if len(names) > _LISTED else []
        count = f"{len(self.bands)} band{'s' * (len(self.bands) != 1)}"
        return f"{count}: {', '.join(names[:_LISTED] + more)}" if names else f"{count} without descriptions"


@dataclass(frozen=True, slots=True)
class BandChoice:
    """Choice of the bands that a model gets: by the request, else by name, else all bands in the input's order.

    Names match if they are equal or mean the same band (`vllm_mmout.geo.meanings`). The input is refused if its names
    contradict its order, or if they fit two sensors with different results.
    """

    model: str
    wanted: tuple[str, ...]
    """Names of the bands that the model takes, in the model's order."""
    params: OutputParams
    one_for_all: bool = False
    """True if the only band of an input may serve as every band of the model. A grey picture then serves as RGB."""
    noted: list[str] = field(default_factory=list)
    """Notes for the user about assumptions made in the choice of bands."""
    clouds: list[CloudLayer] = field(default_factory=list)
    """Bands that mark clouds, one for each date. Empty unless the request masks clouds. The list is filled when the
    input's files are opened."""
    unpack: Callable[[Sequence[Layer], OutputParams], list[Layer]] = unpacked_layers
    """Function that applies scale and offset to the chosen bands."""

    @property
    def requested(self) -> tuple[int | str, ...] | None:
        """Bands in the request, as numbers (from 1) or names. None if the request does not choose bands."""
        if self.params.indices is not None:
            return tuple(index + 1 for index in self.params.indices)
        return self.params.bands

    @property
    def option(self) -> str | None:
        """Name of the request option that chooses the bands: "bands" or "indices". None if the request sets neither."""
        return None if self.requested is None else "bands" if self.params.indices is None else "indices"

    def places(self, bands: BandList, dates: int = 1) -> list[int]:
        """Return the indices (from 0) of the input's bands that the model gets.

        For several dates, the bands of the first date come first, then those of the second.
        """
        if (requested := self.requested) is not None:
            try:
                places = [_band_index(band, bands) for band in requested]
            except InputError as error:
                raise InputError(str(error), param=self.option) from None
            if len(places) != dates * len(self.wanted):
                raise self._miscounted(bands, len(places), dates)
            return places
        named = [bands.find(name) for name in self.wanted]
        if dates == 1 and all(len(indices) == 1 for indices in named) and self._of_one_sensor(bands, named):
            return [indices[0] for indices in named]
        meanings = list(possible_meanings(self.wanted, bands.bands))
        by_name = [reading.match_names(dates) for reading in meanings]
        if by_name[0] is not None and all(indices == by_name[0] for indices in by_name):
            self._note(bands, meanings[0], by_name[0])
            return by_name[0]
        if not bands.defaults:
            doubtful = any(by_name) and all(len(indices) < 2 for indices in named)
            raise self._sensor_error(bands, meanings) if doubtful else self._not_named(bands, named, meanings)
        return self._in_order(bands, meanings, dates, doubtful=any(by_name))

    def _in_order(self, bands: BandList, meanings: Sequence[NameMeanings], dates: int, *, doubtful: bool) -> list[int]:
        """Choose the bands in the input's order, and return their indices.

        This is done if neither the request nor the band names choose bands. Raise InputError if the names of bands
        contradict this order. ``doubtful`` is True if names identify the bands for some sensors only.
        """
        places, count = list(bands.defaults), dates * len(self.wanted)
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
            raise self._sensor_error(bands, meanings) if doubtful else self._miscounted(bands, len(places), dates)
        wrong = [reading.contradicts(places) for reading in meanings]
        if any(wrong) and (all(wrong) or not bands.keeps_order):
            raise (
                self._contradicted(bands, places)
                if all(wrong) and not doubtful
                else self._sensor_error(bands, meanings)
            )
        if any(wrong):
            self.noted.append(
                f"{_capital(bands.what)} was taken in its order for {', '.join(self.wanted)}; its names"
                f" ({bands.names_of(places)}) may be those of {_sensors(meanings)}, which number bands differently."
            )
        self._note(bands, meanings[wrong.index(False)], places)
        return places

    def _of_one_sensor(self, bands: BandList, same_named: Sequence[Sequence[int]]) -> bool:
        """Return whether the input bands ``same_named`` can come from the same sensor as the model's bands.

        Equal names are not enough: B5 of Landsat is not B5 of Sentinel-2. For each band of the model, ``same_named``
        holds the indices of the input's bands with its name. Bands of an unknown sensor are accepted.
        """
        own = set(possible_sensors(self.wanted))
        file_sensors = {bands.bands[place].sensor for places in same_named for place in places} - {None, OTHER_SENSOR}
        return own == {""} or not file_sensors or bool(own & file_sensors)

    def _note(self, bands: BandList, meanings: NameMeanings, places: Sequence[int]) -> None:
        """Add notes for the user about assumptions in the choice of bands. ``places`` are the chosen bands' indices."""
        if meanings.use_colours(places) and list(places) != sorted(places):
            numbers = ", ".join(str(place + 1) for place in places)
            self.noted.append(
                f"Bands {numbers} of {bands.what} were taken for {', '.join(self.wanted)} by their colour"
                " interpretation; choose others with bands=[...]."
            )
        for number, place in meanings.nir_mismatches(places):
            self.noted.append(
                f"Band {str(bands.bands[place])!r} of {bands.what} was taken for {self.wanted[number]!r}, the other"
                " near infrared; choose another with bands=[...]."
            )
        of_one_file = len(bands.bands) > 1 and not any(band.file for band in bands.bands)
        if of_one_file and places == list(bands.defaults) and (others := meanings.not_understood(places)):
            self.noted.append(
                f"Bands {bands.names_of(others)} of {bands.what} were taken by their position, as the model's names"
                f" differ ({', '.join(self.wanted)}); choose with bands=[...]."
            )

    def _contradicted(self, bands: BandList, places: Sequence[int]) -> InputError:
        return InputError(
            f"{bands.what} says that its bands are {bands.names_of(places)}, and in this order they would be taken for"
            f" {', '.join(self.wanted)}, which model {self.model!r} takes; choose them with bands=[...], in the model's"
            f" order. {_capital(bands.what)} has {bands}"
        )

    def _sensor_error(self, bands: BandList, meanings: Sequence[NameMeanings]) -> InputError:
        """Return the error for band names, such as B5, whose meaning depends on a sensor that is unknown."""
        return InputError(
            f"the names of the bands may be those of {_sensors(meanings)}, which number them differently, and the"
            f" sensor is unknown: {bands.what} has {bands}; model {self.model!r} takes {', '.join(self.wanted)}. Choose"
            " them with bands=[...], in the model's order, or name the sensor in the file's name or its item SENSOR"
        )

    def _not_named(
        self, bands: BandList, named: Sequence[Sequence[int]], meanings: Sequence[NameMeanings]
    ) -> InputError:
        meant = [indices or meanings[0].matches(number) for number, indices in enumerate(named)]
        for name, indices in zip(self.wanted, meant, strict=True):
            if len(indices) > 1:
                return _ambiguous(name, indices, bands)
        missing = ", ".join(repr(name) for name, indices in zip(self.wanted, meant, strict=True) if not indices)
        return InputError(
            f"{bands.what} has no band {missing}, which model {self.model!r} takes ({', '.join(self.wanted)}); it has"
            f" {bands}. Choose with bands=[...], by name{' or by number from 1' if bands.by_number else ''}"
        )

    def _miscounted(self, bands: BandList, count: int, dates: int) -> InputError:
        subject = f"{bands.what} has" if self.requested is None else f"{self.option} chooses"
        each, several = len(self.wanted), ""
        takes, names = f"model {self.model!r} takes {dates * each}", ", ".join(self.wanted)
        if dates > 1:
            takes += f", {dates} dates of {each} bands, date by date"
            several = f" ({count // each} dates)" * (count % each == 0)
        alpha = (
            f" beside band {bands.alpha + 1}, which is alpha" if bands.alpha is not None and not self.requested else ""
        )
        listing = f"; {bands.what} has {bands}" if any(band.names for band in bands.bands) else ""
        together = "; files of a band each are one input in a list inside the list, [[...]], or in a folder"
        return InputError(
            f"{subject} {count} band{'s' * (count != 1)}{several}{alpha}, {takes} ({names}); choose with bands=[...],"
            f" which counts from 1{together * (len(bands.bands) == 1 < each)}{listing}",
            param=self.option,
        )


def _sensors(meanings: Sequence[NameMeanings]) -> str:
    return " and ".join(dict.fromkeys(sensor for reading in meanings for sensor in reading.sensors if sensor))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _band_index(band: int | str, bands: BandList) -> int:
    if isinstance(band, str):
        indices = bands.find(band) or _indices_by_meaning(band, bands)
        if len(indices) > 1:
            raise _ambiguous(band, indices, bands)
        if not indices:
            raise InputError(f"band {band!r} does not exist; {bands.what} has {bands}")
        return indices[0]
    if not bands.by_number:
        raise InputError(
            f"band {band} is a number, and the files of a folder or a STAC item have no order; choose by name with"
            f" bands=[...], or give the files in a list; {bands.what} has {bands}"
        )
    if isinstance(band, bool) or not isinstance(band, int | np.integer) or not 1 <= band <= len(bands.bands):
        raise InputError(f"band {band} does not exist (bands count from 1); {bands.what} has {bands}")
    return int(band) - 1


def _indices_by_meaning(name: str, bands: BandList) -> list[int]:
    """Return the indices of the bands that ``name`` may mean. Return [] if possible sensors give different results."""
    index_lists = [reading.matches(0) for reading in possible_meanings((name,), bands.bands)]
    return index_lists[0] if all(places == index_lists[0] for places in index_lists) else []


def _ambiguous(name: str, indices: Sequence[int], bands: BandList) -> InputError:
    shown, more = indices[:_ALIKE_LISTED], [f"{len(indices) - _ALIKE_LISTED} more"] * (len(indices) > _ALIKE_LISTED)
    files = [bands.bands[place].file for place in shown]
    numbers = ", ".join([str(place + 1) for place in shown] + more)
    where = f", in {' and '.join(files + more)}" if any(files) else ""
    problem = f"is {'that' if where else 'the description'} of {len(indices)} bands{where}"
    if not bands.by_number:
        return InputError(f"band {name!r} {problem}; give the files meant in a list, or by name in a dict; {bands}")
    return InputError(f"band {name!r} {problem}; choose by number with bands=[...] (they are {numbers}); {bands}")
