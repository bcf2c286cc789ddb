"""Find out which part of the spectrum, or which polarisation, a band name such as "B04" or "VV" means.

The results are the common names of STAC's EO extension (``common_name``), such as "red", "nir08" and "swir16".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

Meaning: TypeAlias = frozenset[str]
"""Set of the common names that a band name can mean. For example, "NIR" can mean "nir" and "nir08". The set is empty if
the band name is unknown."""

NOTHING: Final[Meaning] = frozenset()
NIR_BANDS: Final[Meaning] = frozenset({"nir", "nir08"})
"""Common names of the broad and the narrow near-infrared band."""
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
"""Tables of the bands of each sensor: sensor -> band number -> common name, such as "red". A broad band has several
common names, separated by spaces.

HLS L30 products use the numbers of Landsat 8. HLS S30 products use the numbers of Sentinel-2.
"""

_COLLECTION_2: Final = {
    LANDSAT_8: {"sr": frozenset("1234567"), "st": frozenset({"10"})},
    LANDSAT_4: {"sr": frozenset("123457"), "st": frozenset("6")},
}
"""Band numbers in Landsat Collection 2: sensor -> product -> numbers. The product is "sr" for surface reflectance
(SR_B4), or "st" for surface temperature (ST_B10)."""

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
    "lwir11": "lwir11 tirs1 tir1 thermal1 thermalinfrared1 themralinfrared1",  # TerraTorch's spelling
    "lwir12": "lwir12 tirs2 tir2 thermal2 thermalinfrared2 themralinfrared2",
    "vv": "vv", "vh": "vh", "hh": "hh", "hv": "hv",
}  # fmt: skip
"""Words that mean a band: common name -> words, separated by spaces. Some keys hold several common names. Each word of
such a key can mean any of the key's names."""
_MEANINGS: Final = {word: frozenset(bands.split()) for bands, words in _WORDS.items() for word in words.split()}
_LETTERS: Final = {"r": RED, "g": GREEN, "b": BLUE, "n": NIR_BANDS, "nir": NIR_BANDS}
"""Common names of the bands that a short band name can mean. This table is used only for rasters that have bands named
"r", "g" and "b"."""

_FILLER_WORDS: Final = frozenset(
    {
        *("band", "bands", "channel", "reflectance", "surface", "sr", "st", "toa", "boa", "sur", "refl", "rho", "dn"),
        *("mean", "median", "max", "min", "raw", "s1", "s2", "l8", "l9", "hls", "msi", "oli", "sentinel2", "landsat8"),
        *("sigma0", "gamma0", "beta0", "sigma", "gamma", "beta", "amplitude", "intensity", "db", "rtc", "linear"),
    }
)
"""Words that occur in band names but do not tell which band it is."""
_ALPHA: Final = re.compile(r"alpha|opacity|transparen|mask|valid|nodata", re.IGNORECASE)
_PIECE: Final = re.compile(r"[,;:()\[\]/|=]| - ")
_WORD: Final = re.compile(r"[^\W_]+")
_CODE: Final = re.compile(r"b(?P<zero>0?)(?P<number>[1-9]\d?a?)")
_LENGTH: Final = re.compile(r"\d+(nm|um|m|µm)?")
_NO_NAME: Final = re.compile(r"(band|layer|channel|image|b)?[\W_]*\d*", re.IGNORECASE)


def understood(name: str, sensor: str = "") -> Meaning:
    """Return the common names that a band name can mean for a sensor, or an empty set if it is not recognised.

    ``sensor`` is a sensor with a table of band numbers, or "" to ignore band numbers.
    """
    words, coded = NOTHING, NOTHING
    for piece in _band_words(name):
        if (meaning := _MEANINGS.get(piece)) is not None:
            if words and not words & meaning:
                return NOTHING  # the name contains two bands, as "red - blue"
            words = words & meaning or meaning
        elif code := _CODE.fullmatch(piece):
            meaning = frozenset(_TABLES.get(sensor, {}).get(code["number"], "").split())
            if coded and coded != meaning:
                return NOTHING
            coded = meaning
    return words & coded or words or coded


def possible_sensors(names: Iterable[str]) -> tuple[str, ...]:
    """Return the sensors that have every band number in ``names``. For example, "SR_B4" contains the band number 4.

    The result is ("",) if no sensor fits, or if the names contain no band numbers.
    """
    sensors = list(_TABLES)
    coded = False
    for name in names:
        codes = [code for piece in _band_words(name) if (code := _CODE.fullmatch(piece))]
        coded = coded or bool(codes)
        sensors = [sensor for sensor in sensors if all(_sensor_has(sensor, name, code) for code in codes)]
    return tuple(sensors) if coded and sensors else ("",)


def _sensor_has(sensor: str, name: str, code: re.Match[str]) -> bool:
    """Return whether ``name`` can be the name of a band of a sensor.

    The sensor must have a band with the number in ``name``, must write the number like ``code`` ("b4", or "b04" with a
    zero), and the words of the name, such as "red", must fit the band. ``code`` is the part of ``name`` with the
    number.
    """
    number, words = code["number"], set(_WORD.findall(name.casefold().replace("_", " ")))
    if number not in _TABLES[sensor] or (sensor == MODIS) != ("refl" in words):
        return False
    padded = bool(code["zero"]) and sensor != MODIS
    if padded and (sensor == LANDSAT_4 or (sensor == LANDSAT_8 and number == "8")):
        return False  # only Sentinel-2 and HLS (without a panchromatic band) write "B04"
    if words & {"sr", "st"} and number not in _COLLECTION_2.get(sensor, {}).get("sr" if "sr" in words else "st", ()):
        return False
    name_meanings = [meaning for piece in _band_words(name) if (meaning := _MEANINGS.get(piece))]
    return all(meaning & set(_TABLES[sensor][number].split()) for meaning in name_meanings)


def _band_words(name: str) -> list[str]:
    """Return the possible band names in a text, in lower case without separators: "b4" and "red" for "B4 (Red)"."""
    candidates = []
    for piece in _PIECE.split(name.casefold()):
        words = _WORD.findall(piece.replace("_", " "))
        plain = [word for word in words if word not in _FILLER_WORDS]
        lettered = [word for word in plain if not any(map(str.isdecimal, word)) or word in _MEANINGS]
        codes = [word for word in plain if _CODE.fullmatch(word)]
        others = [word for word in plain if word not in codes and not any(map(str.isdecimal, word))]
        for joined in ("".join(words), "".join(plain), "".join(lettered)):
            if joined in _MEANINGS:
                candidates.append(joined)
                break
        if len(codes) == 1 and (not others or "".join(others) in _MEANINGS):
            candidates += codes
    return candidates


def meanings(names: Sequence[Sequence[str]], sensors: Sequence[str]) -> list[Meaning]:
    """Return, for each band of a raster, the set of common names ("red") that the names of the band can mean.

    ``names`` has several names per band, such as its description and a name from the user. A set is empty if the names
    of a band contradict each other or are not recognised. ``sensors`` has an item for each band.
    """
    letters = {name.casefold() for all_names in names for name in all_names}
    coloured = {"r", "g", "b"} <= letters
    results = []
    for all_names, sensor in zip(names, sensors, strict=True):
        each = [
            (_LETTERS.get(name.casefold(), NOTHING) if coloured else NOTHING) or understood(name, sensor)
            for name in all_names
        ]
        results.append(frozenset.intersection(*[meaning for meaning in each if meaning] or [NOTHING]))
    return results


def says_nothing(name: str) -> bool:
    """Return whether a name, such as "Band 1", "layer_3", "7" or "", does not describe a band."""
    return _NO_NAME.fullmatch(name.strip()) is not None and not _CODE.fullmatch(name.strip().casefold())


def is_alpha(description: str | None) -> bool:
    """Return whether ``description`` can describe an alpha band. Return False for "red", for example.

    Callers check the description of a band that is tagged as alpha. A missing or meaningless description returns True.
    """
    return description is None or says_nothing(description) or _ALPHA.search(description) is not None


def trailing_band(stem: str) -> str | None:
    """Return the words at the end of a file stem that mean a band ("swir_1" for ``scene_swir_1``), or None."""
    words = re.split(r"[._\- ]+", stem)
    while words:
        for count in (3, 2, 1):
            if "".join(words[-count:]).casefold() in _MEANINGS:
                return "_".join(words[-count:])
        if not _LENGTH.fullmatch(words.pop().casefold()):
            break
    return None
