"""Match a model's bands with the bands of an input by the meaning of their names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any

from vllm_mmout.geo import NIR_BANDS, band_key, meanings, possible_sensors, says_nothing


@dataclass(frozen=True, slots=True)
class InputBand:
    """Band of an input: its names, sensor and colour, and the file that holds it."""

    names: tuple[str, ...] = ()
    """Names of the band, the preferred name first. Empty for a band without a description."""
    file: str = ""
    """Name of the band's file if the input has several files."""
    sensor: str | None = None
    """Name of the sensor that took the file's image, as `vllm_mmout.geo.sensor_of` returns it."""
    colour: str | None = None
    """Colour interpretation of the band in the file, such as "red". The colour identifies the band only if the band's
    names say nothing, such as "Band 1"."""
    source: Any = None
    """File that holds the band: an open file, a path, or a file entry of a catalogue record. A path or an entry is
    opened when the band is chosen."""
    place: int = 0
    """Index (from 0) of the band in the file."""
    area: float = math.inf
    """Area of a pixel in square units of the coordinate system. Infinite if unknown."""

    def __str__(self) -> str:
        """Return the band's first name, else its colour."""
        return next(iter(self.names), None) or (f"{self.colour} by its colour" if self.colour else "without a name")


@dataclass(frozen=True, slots=True)
class _BandMeaning:
    """Possible meanings of a band, such as red or narrow NIR, according to the band's names or colour."""

    common: frozenset[str]
    """Standard names, such as "red", for the possible meanings of the band. Empty if the meaning is unknown.

    The meaning follows from the band's names in the file or the model. If these names say nothing, such as "Band 1",
    the file's colour interpretation is used."""
    keys: frozenset[str]
    """Names of the band, normalized by `band_key` so that different spellings of a name are equal."""
    by_colour: bool = False
    """True if only the file's colour interpretation, such as red, identifies the band. The band's name is then missing,
    or not descriptive, such as "Band 1"."""

    def fits(self, other: _BandMeaning) -> bool:
        """Return whether this band and ``other`` can be the same band. The two bands must share a meaning, such as red.

        If the meaning of either band is unknown, the two bands must share a name instead.
        """
        if self.common and other.common:
            return bool(self.common & other.common)
        return bool(self.keys & other.keys)

    def is_near(self, other: _BandMeaning) -> bool:
        """Return whether this band is broad near infrared and ``other`` narrow near infrared, or the reverse."""
        return bool(self.common & NIR_BANDS and other.common & NIR_BANDS) and not self.common & other.common


@dataclass(frozen=True, slots=True)
class NameMeanings:
    """Meanings of the band names of a model and of an input, if the bands come from the sensors in `sensors`."""

    sensors: tuple[str, str]
    """Assumed sensor of the model's bands, and assumed sensor of the input's bands. "" is an unknown sensor."""
    model_bands: tuple[_BandMeaning, ...]
    """Possible meanings of each band that the model takes, such as red or narrow NIR, in the model's order."""
    input_bands: tuple[_BandMeaning, ...]
    """Possible meanings of each band of the input, such as red or narrow NIR, in the input's order."""

    def match_names(self, dates: int) -> list[int] | None:
        """Match the model's bands with the input's bands by name. Return the indices of the matching input bands.

        The indices are ordered by date, then in the order of the model's bands. Return None unless each band of the
        model matches exactly one band of the input per date.
        """
        rows = [self._matches(band, dates) for band in self.model_bands]
        if any(len(row) != dates for row in rows):
            return None
        places = [row[date] for date in range(dates) for row in rows]
        return places if len(set(places)) == len(places) else None

    def matches(self, number: int) -> list[int]:
        """Return the indices of the input's bands that can serve as the model's band ``number`` (from 0)."""
        return self._matches(self.model_bands[number], 1)

    def _matches(self, model_band: _BandMeaning, count: int) -> list[int]:
        fitting = [place for place, band in enumerate(self.input_bands) if model_band.fits(band)]
        named = [place for place in fitting if not self.input_bands[place].by_colour]
        if named:  # names take precedence over colours
            fitting = named
        if not fitting:
            return [place for place, band in enumerate(self.input_bands) if model_band.is_near(band)]
        if len(fitting) > count:
            exact = [place for place in fitting if self.input_bands[place].common == model_band.common]
            broad = [place for place in fitting if "nir" in self.input_bands[place].common & model_band.common]
            fitting = next((places for places in (exact, broad) if len(places) == count), fitting)
        return fitting

    def contradicts(self, places: Sequence[int]) -> bool:
        """Return whether the names of the chosen input bands contradict the order of the model's bands.

        ``places`` holds the indices of the input's bands that the model would get, date by date.
        """
        count = len(self.model_bands)
        for first in range(0, len(places), count):
            chosen = [self.input_bands[place] for place in places[first : first + count]]
            pairs = [
                (model_band, band)
                for model_band, band in zip(self.model_bands, chosen, strict=True)
                if not model_band.fits(band) and not model_band.is_near(band)
            ]
            if any(model_band.fits(band) for (model_band, _), (_, band) in permutations(pairs, 2)):
                return True
            if any(model_band.common and band.common and not band.by_colour for model_band, band in pairs):
                return True
        return False

    def nir_mismatches(self, places: Sequence[int]) -> list[tuple[int, int]]:
        """Return the pairs (model band, input band) where one band is broad and the other is narrow near infrared.

        Both bands are indices from 0. ``places`` holds the indices of the input's bands that the model gets.
        """
        pairs = ((number % len(self.model_bands), place) for number, place in enumerate(places))
        return [(number, place) for number, place in pairs if self.model_bands[number].is_near(self.input_bands[place])]

    def not_understood(self, places: Sequence[int]) -> list[int]:
        """Return the indices of the input bands whose names are not understood. Only bands in ``places`` are checked.

        Bands whose names are equal to those of the model are left out, as are bands without descriptive names.
        """
        pairs = ((self.model_bands[number % len(self.model_bands)], place) for number, place in enumerate(places))
        return [
            place
            for model_band, place in pairs
            if self.input_bands[place].keys
            and not self.input_bands[place].common
            and not model_band.fits(self.input_bands[place])
        ]

    def use_colours(self, places: Sequence[int]) -> bool:
        """Return whether any chosen input band is recognized only by its colour interpretation.

        ``places`` holds the indices of the chosen bands.
        """
        return any(self.input_bands[place].by_colour for place in places)


def possible_meanings(band_names: Sequence[str], bands: Sequence[InputBand]) -> Iterator[NameMeanings]:
    """Yield the meanings of all band names, for each possible pair of the model's sensor and the input's sensor.

    Sensors matter because a name such as "B5" means a different band for each sensor.
    """
    model_names = [(name,) for name in band_names]
    input_names = [() if _are_only_numbered(bands) else band.names for band in bands]
    sensorless = [name for band, names in zip(bands, input_names, strict=True) if band.sensor is None for name in names]
    for model, file in product(possible_sensors(band_names), possible_sensors(sensorless)):
        model_bands = meanings(model_names, [model] * len(model_names))
        file_bands = meanings(input_names, [file if band.sensor is None else band.sensor for band in bands])
        colours = meanings([_colour(band) for band in bands], [""] * len(bands))
        yield NameMeanings(
            (model, file),
            tuple(_BandMeaning(common, _keys(names)) for common, names in zip(model_bands, model_names, strict=True)),
            tuple(
                _BandMeaning(common or colour, _keys(names), by_colour=bool(colour) and not common)
                for common, colour, names in zip(file_bands, colours, input_names, strict=True)
            ),
        )


def _colour(band: InputBand) -> tuple[str, ...]:
    return (band.colour,) if band.colour and all(map(says_nothing, band.names)) else ()


def _are_only_numbered(bands: Sequence[InputBand]) -> bool:
    """Return whether the band names only number the bands: b1, b2, b3 and so on, or b0, b1, b2 and so on.

    Such names do not describe the bands. No sensor has a band 0, so b0 cannot be the name of a sensor's band.
    """
    if all(band.names == (f"b{number}",) for number, band in enumerate(bands, start=1)):
        return True
    numbers = [{name.casefold() for name in band.names} for band in bands]
    return all(names == {f"b{number}"} for number, names in enumerate(numbers))


def _keys(names: Sequence[str]) -> frozenset[str]:
    return frozenset(band_key(name) for name in names if not says_nothing(name))
