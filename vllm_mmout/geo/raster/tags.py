"""The tags of a TIFF: its directories, read and checked against its length (TIFF 6.0, section 2; BigTIFF), and GDAL's.

tifffile passes over a tag whose value lies behind the end of the file. A truncated raster would lose its place on Earth
without a word; hence this walk before anything is decoded. What TIFF has no tags for stands in the XML of GDAL_METADATA
(https://gdal.org/drivers/raster/gtiff.html).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO, Literal
from xml.etree import ElementTree as ET
from xml.sax.saxutils import unescape

import numpy as np

from vllm_mmout.errors import InputError, SaveError

ASCII = 2
SHORT = 3
DOUBLE = 12


@dataclass(frozen=True, slots=True)
class GeoTag:
    """One TIFF tag as it stands in a file."""

    code: int
    dtype: int
    """TIFF's number of the value's type: 2 ASCII, 3 SHORT, 12 DOUBLE, ..."""
    count: int
    """Number of values; for ASCII bytes, the closing NUL included."""
    value: tuple[float, ...] | bytes
    """The numbers, or the bytes of ASCII."""

    @classmethod
    def shorts(cls, code: int, values: Iterable[int]) -> GeoTag:
        """A tag of 16-bit integers."""
        numbers = tuple(values)
        return cls(code, SHORT, len(numbers), numbers)

    @classmethod
    def doubles(cls, code: int, values: Iterable[float]) -> GeoTag:
        """A tag of 64-bit floating-point numbers."""
        numbers = tuple(float(value) for value in values)
        return cls(code, DOUBLE, len(numbers), numbers)

    @classmethod
    def text(cls, code: int, text: str) -> GeoTag:
        """A tag of text, closed by a NUL."""
        data = text.encode() + b"\0"
        return cls(code, ASCII, len(data), data)

    @property
    def numbers(self) -> tuple[float, ...]:
        """The numbers; none for ASCII."""
        return () if isinstance(self.value, bytes) else self.value


_TYPES = ["u1", "u2", "u4", "i1", "i2", "i4", "f4", "f8", "u4", "u8", "i8", "u8"]
NUMBERS = dict(zip((1, 3, 4, 6, 8, 9, 11, 12, 13, 16, 17, 18), _TYPES, strict=True))
"""NumPy's types of TIFF's numbers."""
_BYTES = {2: 1, 7: 1, 5: 8, 10: 8}
"""Types that are kept as bytes (ASCII, UNDEFINED, the two kinds of fractions), and their size."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Where the value of one tag lies."""

    dtype: int
    count: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Directory:
    """One image file directory."""

    byteorder: Literal["<", ">"]
    entries: Mapping[int, Entry]

    def tag(self, file: BinaryIO, code: int) -> GeoTag | None:
        """One tag with its value, None if the directory has none of that number or of a type unknown to TIFF."""
        entry = self.entries.get(code)
        if entry is None:
            return None
        file.seek(entry.offset)
        data = file.read(entry.size)
        if entry.dtype not in NUMBERS:
            return GeoTag(code, entry.dtype, entry.count, self._native_fractions(data, entry.dtype))
        numbers = np.frombuffer(data, np.dtype(NUMBERS[entry.dtype]).newbyteorder(self.byteorder))
        return GeoTag(code, entry.dtype, entry.count, tuple(numbers.tolist()))

    def text(self, file: BinaryIO, code: int) -> str | None:
        """One ASCII tag as text without the closing NULs; None if there is none."""
        tag = self.tag(file, code)
        return tag.value.rstrip(b"\0").decode("utf-8", "replace") if tag and isinstance(tag.value, bytes) else None

    def number(self, file: BinaryIO, code: int) -> float | None:
        """Return the first number of a tag, None where the directory has no such tag or one without numbers."""
        tag = self.tag(file, code)
        return tag.numbers[0] if tag is not None and tag.numbers else None

    def _native_fractions(self, data: bytes, dtype: int) -> bytes:
        """The bytes of fractions in little-endian order, in which files are written; other bytes as they are."""
        if dtype not in (5, 10) or self.byteorder == "<":
            return data
        return np.frombuffer(data, ">u4").astype("<u4").tobytes()


def read_directories(file: BinaryIO, name: str) -> list[Directory]:
    """Walk through all directories of a TIFF."""
    size = file.seek(0, 2)
    reader = _Reader(file, name, size)
    order: Literal["<", ">"] = "<" if reader.read(0, 2, "the header") == b"II" else ">"
    big = struct.unpack(order + "H", reader.read(2, 2, "the header"))[0] == 43
    offset_format, first = ("Q", 8) if big else ("I", 4)
    width = struct.calcsize(offset_format)
    (at,) = struct.unpack(order + offset_format, reader.read(first, width, "the header"))
    directories: list[Directory] = []
    seen: set[int] = set()
    while at and at not in seen:
        seen.add(at)
        entries, end = _entries(reader, at, order, big=big)
        directories.append(Directory(order, entries))
        (at,) = struct.unpack(order + offset_format, reader.read(end, width, "the directory"))
    if not directories:
        raise InputError(f"{name} is a TIFF without an image")
    return directories


def _entries(reader: _Reader, at: int, order: str, *, big: bool) -> tuple[dict[int, Entry], int]:
    count_format, value_format = ("Q", "Q") if big else ("H", "I")
    count_size, inline = struct.calcsize(count_format), struct.calcsize(value_format)
    (count,) = struct.unpack(order + count_format, reader.read(at, count_size, "the directory"))
    entry_format = f"{order}HH{value_format}"
    entry_size = struct.calcsize(entry_format) + inline
    table = reader.read(at + count_size, count * entry_size, "the directory")
    entries = {}
    for index in range(count):
        code, dtype, number = struct.unpack_from(entry_format, table, index * entry_size)
        item = np.dtype(NUMBERS[dtype]).itemsize if dtype in NUMBERS else _BYTES.get(dtype)
        if item is None:
            continue
        place = at + count_size + (index + 1) * entry_size - inline
        if number * item > inline:
            (place,) = struct.unpack_from(order + value_format, table, (index + 1) * entry_size - inline)
        reader.check(place, number * item, f"tag {code}")
        entries[code] = Entry(dtype, number, place, number * item)
    return entries, at + count_size + count * entry_size


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads parts of a file and says which part is missing."""

    file: BinaryIO
    name: str
    size: int

    def check(self, at: int, count: int, what: str) -> None:
        if at + count > self.size:
            raise truncated(self.name, self.size, at + count, what)

    def read(self, at: int, count: int, what: str) -> bytes:
        self.check(at, count, what)
        self.file.seek(at)
        return self.file.read(count)


def truncated(name: str, size: int, needed: int, what: str) -> InputError:
    """The error of a file that ends too early."""
    return InputError(
        f"{name} is truncated or damaged: {what} reaches to byte {needed}, the file has {size}; fetch it anew"
    )


GDAL_METADATA = 42112
GDAL_NODATA = 42113

TEXT_TAGS = {
    "TIFFTAG_DOCUMENTNAME": 269,
    "TIFFTAG_IMAGEDESCRIPTION": 270,
    "TIFFTAG_SOFTWARE": 305,
    "TIFFTAG_DATETIME": 306,
    "TIFFTAG_ARTIST": 315,
    "TIFFTAG_HOSTCOMPUTER": 316,
    "TIFFTAG_COPYRIGHT": 33432,
}
"""TIFF tags that GDAL shows as metadata items, by the names it gives them."""

_QUOTES = {"&quot;": '"', "&apos;": "'"}
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold."""


@dataclass(frozen=True, slots=True)
class GdalMetadata:
    """The items of one raster.

    GDAL escapes a text before it hands it to its XML writer, and unescapes it once more after the parser: "&" stands as
    "&amp;amp;" in the file.
    """

    items: Mapping[str, str] = field(default_factory=dict)
    """Items of the raster as a whole, by name."""
    descriptions: Mapping[int, str] = field(default_factory=dict)
    """Description of a band, by its number from 0."""
    band_items: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """Further items of a band, by its number from 0."""
    units: Mapping[int, str] = field(default_factory=dict)
    """Unit of a band's values, by its number from 0; GDAL calls it the unit type."""
    colours: Mapping[int, str] = field(default_factory=dict)
    """What a band is to the eye ("Undefined", "Alpha"), by its number from 0; to GDAL it counts before TIFF's tags."""
    scales: Mapping[int, str] = field(default_factory=dict)
    """What the numbers of a band are multiplied by, by its number from 0."""
    offsets: Mapping[int, str] = field(default_factory=dict)
    """What is added to them then, by the number of the band from 0."""

    @classmethod
    def from_xml(cls, xml: str) -> GdalMetadata:
        """Read the tag's text; one that is not well-formed counts as empty, as in GDAL.

        Items of other domains than the default one are not read.
        """
        if "<!" in xml.replace("<!--", ""):
            return cls()  # a document type, where entities could be declared, has no place here
        try:
            root = ET.fromstring(xml)  # noqa: S314 - no entities, see above
        except ET.ParseError:
            return cls()
        items: dict[str, str] = {}
        bands: dict[int, dict[str, str]] = {}
        said: dict[str, dict[int, str]] = {
            role: {} for role in ("description", "unittype", "colorinterp", "scale", "offset")
        }
        for item in root.iter("Item"):
            name, role, sample = item.get("name"), item.get("role"), item.get("sample", "")
            text = unescape(item.text or "", _QUOTES)
            if name is None or item.get("domain"):
                continue
            if not sample:
                items[name] = text
            elif sample.isdecimal() and role in said:
                said[role][int(sample)] = text
            elif sample.isdecimal() and role is None:
                bands.setdefault(int(sample), {})[name] = text
        return cls(
            items,
            said["description"],
            bands,
            said["unittype"],
            said["colorinterp"],
            said["scale"],
            said["offset"],
        )


def checked_xml(name: str, text: str) -> str:
    """The text of a metadata item, if XML can hold it."""
    bad = _FORBIDDEN.search(text)
    if bad:
        raise SaveError(f"metadata item {name!r} has the character {bad[0]!r}, which GDAL_METADATA (XML) cannot hold")
    return text
