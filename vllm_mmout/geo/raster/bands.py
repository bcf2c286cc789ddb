"""Names of bands: which part of the spectrum, or which polarisation, a name means.

Bands are called as STAC's EO extension calls them (``common_name``), as "red", "nir08", "swir16".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

Meaning: TypeAlias = frozenset[str]
"""The bands that a name may mean: "NIR" is the broad or the narrow one. Empty: the name is not understood."""

NOTHING: Final[Meaning] = frozenset()
NIR_BANDS: Final[Meaning] = frozenset({"nir", "nir08"})
"""Broad and narrow near infrared."""
RED, GREEN, BLUE = (frozenset({name}) for name in ("red", "green", "blue"))

SENTINEL_2, LANDSAT_8, LANDSAT_4, MODIS = "Sentinel-2", "Landsat 8 or 9", "Landsat 4 to 7", "MODIS"
_TABLES: Final[Mapping[str, Mapping[str, str]]] = {
    SENTINEL_2: {
        "1": "coastal", "2": "blue", "3": "green", "4": "red", "5": "rededge071", "6": "rededge075", "7": "rededge078",
        "8": "nir", "8a": "nir08", "9": "nir09", "10": "cirrus", "11": "swir16", "12": "swir22",
    },
    LANDSAT_8: {
        "1": "coastal", "2": "blue", "3": "green", "4": "red", "5": "nir08", "6": "swir16", "7": "swir22", "8": "pan",
        "9": "cirrus", "10": "lwir11", "11": "lwir12",
    },
    LANDSAT_4: {
        "1": "blue", "2": "green", "3": "red", "4": "nir nir08", "5": "swir16", "6": "lwir", "7": "swir22", "8": "pan",
    },
    MODIS: {
        "1": "red", "2": "nir nir08", "3": "blue", "4": "green", "5": "swir12", "6": "swir16", "7": "swir22",
    },
}  # fmt: skip
"""Number of a band -> the band, by sensor. HLS numbers the bands of L30 as Landsat 8, those of S30 as Sentinel-2."""

_COLLECTION_2: Final = {LANDSAT_8: {"sr": "1234567", "st": "10"}, LANDSAT_4: {"sr": "123457", "st": "6"}}
"""Numbers of bands of surface reflectance (SR_B4) and surface temperature (ST_B10)."""

_WORDS: Final[Mapping[str, str]] = {
    "coastal": "coastal coastalaerosol aerosol coastalblue ultrablue deepblue",
    "blue": "blue",
    "green": "green",
    "greeni": "greeni green1",
    "yellow": "yellow",
    "red": "red",
    "rededge071 rededge075 rededge078": "rededge vegetationrededge",
    "rededge071": "rededge1 rededge071 rededge705 vegetationrededge1 re1",
    "rededge075": "rededge2 rededge075 rededge740 vegetationrededge2 re2",
    "rededge078": "rededge3 rededge078 rededge783 vegetationrededge3 re3",
    "nir nir08": "nir nir1 nearinfrared nearir vnir",
    "nir": "nirbroad broadnir widenir nirwide broadnearinfrared nearinfraredbroad",
    "nir08": "nir08 nir8a nirnarrow narrownir nnir narrownearinfrared nearinfrarednarrow rededge4 re4",
    "nir09": "nir09 watervapor watervapour",
    "nir2": "nir2 nearinfrared2",
    "cirrus": "cirrus",
    "swir12": "swir12 swir1240",
    "swir16": "swir16 swir1 swir1600 swir1610 shortwaveinfrared1 shortwaveinfrared16",
    "swir22": "swir22 swir2 swir2200 swir2190 shortwaveinfrared2 shortwaveinfrared22",
    "swir16 swir22": "swir shortwaveinfrared",
    "pan": "pan panchromatic",
    "lwir lwir11 lwir12": "lwir tir thermal thermalinfrared",
    "lwir11": "lwir11 tirs1 tir1 thermal1 thermalinfrared1 themralinfrared1",  # TerraTorch spells it so
    "lwir12": "lwir12 tirs2 tir2 thermal2 thermalinfrared2 themralinfrared2",
    "vv": "vv", "vh": "vh", "hh": "hh", "hv": "hv",
}  # fmt: skip
"""Bands -> the words that mean them, in small letters and digits alone."""
_MEANINGS: Final = {word: frozenset(bands.split()) for bands, words in _WORDS.items() for word in words.split()}
_LETTERS: Final = {"r": RED, "g": GREEN, "b": BLUE, "n": NIR_BANDS, "nir": NIR_BANDS}
"""Names of one letter, which count only where all of r, g and b are there."""

_FILLING: Final = frozenset(
    {
        *("band", "bands", "channel", "reflectance", "surface", "sr", "st", "toa", "boa", "sur", "refl", "rho", "dn"),
        *("mean", "median", "max", "min", "raw", "s1", "s2", "l8", "l9", "hls", "msi", "oli", "sentinel2", "landsat8"),
        *("sigma0", "gamma0", "beta0", "sigma", "gamma", "beta", "amplitude", "intensity", "db", "rtc", "linear"),
    }
)
"""Words beside a band's name that do not say which band it is."""
_ALPHA: Final = re.compile(r"alpha|opacity|transparen|mask|valid|nodata", re.IGNORECASE)
_PIECE: Final = re.compile(r"[,;:()\[\]/|=]| - ")
_WORD: Final = re.compile(r"[^\W_]+")
_CODE: Final = re.compile(r"b(?P<zero>0?)(?P<number>[1-9]\d?a?)")
_LENGTH: Final = re.compile(r"\d+(nm|um|m|µm)?")
_NO_NAME: Final = re.compile(r"(band|layer|channel|image|b)?[\W_]*\d*", re.IGNORECASE)


def understood(name: str, sensor: str = "") -> Meaning:
    """Return the bands that a name may mean on a sensor; empty for a name that is not understood.

    ``sensor`` is a key of the table of sensors; "" understands no numbers of bands.
    """
    words, coded = NOTHING, NOTHING
    for piece in _pieces(name):
        if (meaning := _MEANINGS.get(piece)) is not None:
            if words and not words & meaning:
                return NOTHING  # a name of two bands, as "red - blue"
            words = words & meaning or meaning
        elif code := _CODE.fullmatch(piece):
            meaning = frozenset(_TABLES.get(sensor, {}).get(code["number"], "").split())
            if coded and coded != meaning:
                return NOTHING
            coded = meaning
    return words & coded or words or coded


def possible_sensors(names: Iterable[str]) -> tuple[str, ...]:
    """Return the sensors whose bands may be called by all of the names; ("",) if no name is a number of a band."""
    found = list(_TABLES)
    coded = False
    for name in names:
        codes = [code for piece in _pieces(name) if (code := _CODE.fullmatch(piece))]
        coded = coded or bool(codes)
        found = [sensor for sensor in found if all(_may_be(sensor, name, code) for code in codes)]
    return tuple(found) if coded and found else ("",)


def _may_be(sensor: str, name: str, code: re.Match[str]) -> bool:
    """Return whether a sensor has a band of that number, spelled as the sensor's products spell it."""
    number, words = code["number"], set(_WORD.findall(name.casefold().replace("_", " ")))
    if number not in _TABLES[sensor] or (sensor == MODIS) != ("refl" in words):
        return False
    padded = bool(code["zero"]) and sensor != MODIS
    if padded and (sensor == LANDSAT_4 or (sensor == LANDSAT_8 and number == "8")):
        return False  # "B04" is spelled by Sentinel-2 and HLS, which has no panchromatic band
    if words & {"sr", "st"} and number not in _COLLECTION_2.get(sensor, {}).get("sr" if "sr" in words else "st", ""):
        return False
    said = [meaning for piece in _pieces(name) if (meaning := _MEANINGS.get(piece))]
    return all(meaning & set(_TABLES[sensor][number].split()) for meaning in said)


def _pieces(name: str) -> list[str]:
    """Return what may be a band's name within a text, in small letters and digits: of "B4 (Red)" "b4" and "red"."""
    found = []
    for piece in _PIECE.split(name.casefold()):
        words = _WORD.findall(piece.replace("_", " "))
        plain = [word for word in words if word not in _FILLING]
        lettered = [word for word in plain if not any(map(str.isdecimal, word)) or word in _MEANINGS]
        codes = [word for word in plain if _CODE.fullmatch(word)]
        others = [word for word in plain if word not in codes and not any(map(str.isdecimal, word))]
        for joined in ("".join(words), "".join(plain), "".join(lettered)):
            if joined in _MEANINGS:
                found.append(joined)
                break
        if len(codes) == 1 and (not others or "".join(others) in _MEANINGS):
            found += codes
    return found


def meanings(names: Sequence[Sequence[str]], sensors: Sequence[str]) -> list[Meaning]:
    """Return what each band means by all of its names together; nothing where they contradict each other."""
    letters = {name.casefold() for all_names in names for name in all_names}
    coloured = {"r", "g", "b"} <= letters
    found = []
    for all_names, sensor in zip(names, sensors, strict=True):
        each = [
            (_LETTERS.get(name.casefold(), NOTHING) if coloured else NOTHING) or understood(name, sensor)
            for name in all_names
        ]
        found.append(frozenset.intersection(*[meaning for meaning in each if meaning] or [NOTHING]))
    return found


def says_nothing(name: str) -> bool:
    """Return whether a name tells no band from another, as "Band 1", "layer_3", "7" or nothing."""
    return _NO_NAME.fullmatch(name.strip()) is not None and not _CODE.fullmatch(name.strip().casefold())


def is_alpha(description: str | None) -> bool:
    """Return whether a band that is tagged as alpha may be it, by its description."""
    return description is None or says_nothing(description) or _ALPHA.search(description) is not None


def trailing_band(stem: str) -> str | None:
    """Return the words at the end of a file's name that mean a band: "swir_1" of ``scene_swir_1``."""
    words = re.split(r"[._\- ]+", stem)
    while words:
        for count in (3, 2, 1):
            if "".join(words[-count:]).casefold() in _MEANINGS:
                return "_".join(words[-count:])
        if not _LENGTH.fullmatch(words.pop().casefold()):
            break
    return None
