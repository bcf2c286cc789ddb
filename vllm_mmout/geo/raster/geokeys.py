"""Check the GeoTIFF keys that define a coordinate system (OGC 19-008, 7.1.1, annex D) before GDAL reads them.

A malicious text could make PROJ open a file, and a huge count could keep GDAL busy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.crs.syntax import CrsTextError, check_words
from vllm_mmout.geo.raster.crs.text import checked_text
from vllm_mmout.geo.raster.tags import SHORT, GeoTag

Keys: TypeAlias = Mapping[int, int | str | tuple[float, ...]]

_DIRECTORY, _DOUBLES, _TEXTS = KEY_TAGS = (34735, 34736, 34737)
_CITATION = 3073
_TEXT_KEYS = (1026, 2049, _CITATION)
_PASSED_KEYS = range(1024, 4097)
"""Numbers of the GeoTIFF keys that are passed to GDAL: 1024 to 4096.

Key 4096 is the vertical coordinate system. Its value 4979 (WGS 84) makes GDAL return a coordinate system with heights.
"""
_DEFINING_KEYS = frozenset({2048, 2050, 2056, 2057, 3072, 3074, 3075})
"""Numbers of the GeoTIFF keys that define a coordinate system, datum, ellipsoid or projection. A file without any of
these keys lacks a coordinate system."""
_SHORTS = range(1 << 16)
_MOST = 1 << 12
"""Largest number of floats, and largest number of text bytes, to read from a file's GeoTIFF keys.

Further floats and bytes are ignored.
"""
_MOST_NUMBERS, _LONGEST = 16, 1000
"""Limits of the GeoTIFF keys that are passed to GDAL. A numeric key may have ``_MOST_NUMBERS`` values. A text key may
have ``_LONGEST`` characters, not counting its WKT."""
_WKT_MARK = "ESRI PE String = "
"""Text that precedes the WKT in GeoTIFF key 3073 (a citation). Esri's software and GDAL write such a WKT for coordinate
systems that no other key can define."""


@dataclass(frozen=True, slots=True)
class GeoKeys:
    """GeoTIFF keys of one file, which define its coordinate system."""

    values: Keys
    """Maps the number of each GeoTIFF key to its value. For example, key 3072 is the projected coordinate system.

    A value is an integer, a tuple of floats, or a text without its closing "|"."""
    tags: tuple[GeoTag, ...]
    """TIFF tags to pass to GDAL, without GeoTIFF keys that are too large or could make PROJ open a file."""

    @classmethod
    def from_tags(cls, tags: Mapping[int, GeoTag]) -> GeoKeys:
        """Read the GeoTIFF keys from TIFF tags. Skip keys that refer to missing values, as GDAL does."""
        directory, doubles, texts = (tags.get(code, GeoTag.shorts(code, ())) for code in KEY_TAGS)
        rows = [int(n) for n in directory.numbers] if directory.dtype == SHORT else []
        numbers = doubles.numbers[:_MOST]
        text = texts.value[:_MOST] if isinstance(texts.value, bytes) else b""
        if text != text.decode(errors="ignore").encode():  # rasterio cannot read names that are not UTF-8
            text = bytes(byte if byte < 128 else ord("?") for byte in text)
        values: dict[int, int | str | tuple[float, ...]] = {}
        harmless: list[int] = []
        for at in range(4, len(rows) - 3, 4):
            key, place, count, value = rows[at : at + 4]
            if place == 0:
                values[key] = value
            elif place == _DOUBLES and value + count <= len(numbers):
                values[key] = numbers[value : value + count]
            elif place == _TEXTS and value + count <= len(text):
                values[key] = text[value : value + count].decode("utf-8", "replace").rstrip("\0").removesuffix("|")
            else:
                continue
            if key in _PASSED_KEYS and count in _SHORTS and value in _SHORTS and _is_harmless(key, values[key]):
                harmless += (key, place, count, value)
        first = GeoTag.shorts(_DIRECTORY, [1, 1, 0, len(harmless) // 4, *harmless])
        others = (GeoTag.doubles(_DOUBLES, numbers), GeoTag(_TEXTS, 2, len(text), text))
        return cls(values, (first, *(tag for tag in others if tag.count)))

    @property
    def refused_wkt(self) -> str | None:
        """WKT of the GeoTIFF citation key that must not be passed to GDAL. None if the key's WKT is safe or missing.

        A WKT is refused if it is invalid or could make PROJ open a file.
        """
        citation = self.values.get(_CITATION)
        wkt = citation.partition(_WKT_MARK)[2].strip() if isinstance(citation, str) else ""
        return wkt if wkt and not _is_wkt(wkt) else None

    @property
    def system(self) -> Keys:
        """GeoTIFF keys of the file's coordinate system: all keys except the raster type.

        The mapping is empty if the file does not define a coordinate system.
        """
        has_system = any(self.values.get(key, 0) != 0 for key in _DEFINING_KEYS)
        return {key: value for key, value in self.values.items() if key != 1025} if has_system else {}


def _is_harmless(key: int, value: int | str | tuple[float, ...]) -> bool:
    if not isinstance(value, str):
        return isinstance(value, int) or len(value) <= _MOST_NUMBERS
    name, mark, wkt = value.partition(_WKT_MARK) if key == _CITATION else (value, "", "")
    if key not in _TEXT_KEYS or len(name) > _LONGEST or "PE STRING" in name.upper() or (mark and not _is_wkt(wkt)):
        return False
    try:
        check_words([name])
    except CrsTextError:
        return False
    return True


def _is_wkt(text: str) -> bool:
    try:
        return checked_text(text)[:1].isalpha()
    except InputError:
        return False
