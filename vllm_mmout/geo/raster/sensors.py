"""Recognise the sensor of a raster from its metadata items and its path."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Final

from vllm_mmout.geo.raster.bands import LANDSAT_4, LANDSAT_8, MODIS, SENTINEL_2

OTHER_SENSOR: Final = "another sensor"
"""Result of `sensor_of` for a sensor that is recognised, but whose band numbers are unknown to this package."""

_SIGNS: Final[Mapping[str, tuple[str, ...]]] = {
    LANDSAT_8: (r"L[CO]0?[89][._-]", r"L[CO][89]\d{6}", r"HLS[._-]?L30", r"LANDSAT[-_ ]?[89](?!\d)", r"OLI(?![A-Z])"),
    LANDSAT_4: (r"L[TE]0?[4-7][._-]", r"L[TE][4-7]\d{6}", r"LANDSAT[-_ ]?[4-7](?!\d)", r"ETM(?![A-Z])"),
    SENTINEL_2: (
        *(r"S2[A-D][._-]", r"HLS[._-]?S30", r"SENTINEL[-_ ]?2", r"MSIL[12][AC]_", r"T\d\d[A-Z]{3}_\d{8}T\d{6}"),
        r"L[12][AC]_T\d\d[A-Z]{3}",
    ),
    MODIS: (r"M[OY]D\d\d[A-Z0-9]*\.A\d{7}", r"MCD\d\d[A-Z0-9]*\.A\d{7}", r"MODIS(?![A-Z])"),
    OTHER_SENSOR: (
        r"LM0?[1-5][._-]",
        r"LANDSAT[-_ ]?[1-3](?!\d)",
        r"AST_L1",
        r"ASTER(?![A-Z])",
        r"CBERS",
        r"GF[-_]?\d(?![A-Z])",
        r"SENTINEL[-_ ]?3",
    ),
}
"""Maps each sensor to regular expressions for words in product names and metadata that reveal the sensor. A match must
start at the beginning of a word."""
_PATTERNS: Final = {
    sensor: re.compile(rf"(?<![A-Z0-9])(?:{'|'.join(signs)})", re.IGNORECASE) for sensor, signs in _SIGNS.items()
}
_ITEM: Final = re.compile(r"SPACECRAFT|SATELLITE|PLATFORM|SENSOR|INSTRUMENT|MISSION|PRODUCT", re.IGNORECASE)
_LEVELS: Final = 6
"""Number of parent folders whose names may reveal the sensor. A Sentinel-2 product has its bands five folders deep."""


def sensor_of(name: str | PurePath, metadata: Mapping[str, str]) -> str | None:
    """Return the sensor that is named in a raster's metadata or, failing that, in the raster's path.

    Return None if neither the metadata nor the path names exactly one sensor.
    """
    texts = [text for item, text in metadata.items() if _ITEM.search(item)]
    path = PurePath(str(name))
    for text in (" ".join(texts), path.name, *[folder.name for folder in path.parents][:_LEVELS]):
        sensors = {sensor for sensor, pattern in _PATTERNS.items() if pattern.search(text)}
        if len(sensors) == 1:
            return sensors.pop()
    return None
