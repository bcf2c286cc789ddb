"""Read and check the directories and tags of a TIFF (TIFF 6.0, section 2; BigTIFF), and parse GDAL's XML tag.

tifffile silently skips a tag whose value is beyond the end of the file, so that a truncated raster would lose its
georeference unnoticed. The directories are therefore checked here before anything is decoded. GDAL writes metadata
without a TIFF tag as XML into the tag GDAL_METADATA (https://gdal.org/drivers/raster/gtiff.html).
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
    """TIFF tag with its value."""

    code: int
    """Number of the tag."""
    dtype: int
    """Number of the value's type in TIFF: 2 ASCII, 3 SHORT, 12 DOUBLE, ..."""
    count: int
    """Number of values in the tag. For ASCII it is the number of bytes, including the closing NUL."""
    value: tuple[float, ...] | bytes
    """Values of the tag: numbers, or the bytes of an ASCII tag."""

    @classmethod
    def shorts(cls, code: int, values: Iterable[int]) -> GeoTag:
        """Create a tag of 16-bit integers."""
        numbers = tuple(values)
        return cls(code, SHORT, len(numbers), numbers)

    @classmethod
    def doubles(cls, code: int, values: Iterable[float]) -> GeoTag:
        """Create a tag of 64-bit floats."""
        numbers = tuple(float(value) for value in values)
        return cls(code, DOUBLE, len(numbers), numbers)

    @classmethod
    def text(cls, code: int, text: str) -> GeoTag:
        """Create the TIFF tag with number ``code`` and type ASCII, whose value is ``text`` followed by a NUL byte."""
        data = text.encode() + b"\0"
        return cls(code, ASCII, len(data), data)

    @property
    def numbers(self) -> tuple[float, ...]:
        """Values of the tag as numbers, or an empty tuple for a tag that holds bytes, such as an ASCII tag."""
        return () if isinstance(self.value, bytes) else self.value


_TYPES = ["u1", "u2", "u4", "i1", "i2", "i4", "f4", "f8", "u4", "u8", "i8", "u8"]
NUMBERS = dict(zip((1, 3, 4, 6, 8, 9, 11, 12, 13, 16, 17, 18), _TYPES, strict=True))
"""NumPy type code for each numeric type of TIFF."""
_BYTES = {2: 1, 7: 1, 5: 8, 10: 8}
"""Size in bytes of the TIFF types kept as raw bytes: ASCII, UNDEFINED, RATIONAL and SRATIONAL."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Directory entry of a TIFF tag: the type, position and size of the tag's value in the file."""

    dtype: int
    """Code of the value's type, as TIFF defines it."""
    count: int
    """Number of values."""
    offset: int
    """Offset of the value in the file, in bytes."""
    size: int
    """Size of the tag's whole value in the file, in bytes."""


@dataclass(frozen=True, slots=True)
class Directory:
    """Image file directory (IFD) of a TIFF, which lists the tags of one image."""

    byteorder: Literal["<", ">"]
    entries: Mapping[int, Entry]
    """Type and position of the value of each tag, by the tag's number."""

    def tag(self, file: BinaryIO, code: int) -> GeoTag | None:
        """Read a tag and its value, or return None if the tag is missing or its type is unknown."""
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
        """Read an ASCII tag as text without closing NULs, or return None if the tag is missing."""
        tag = self.tag(file, code)
        return tag.value.rstrip(b"\0").decode("utf-8", "replace") if tag and isinstance(tag.value, bytes) else None

    def number(self, file: BinaryIO, code: int) -> float | None:
        """Read the first number of a tag, or return None if the tag is missing or not numeric."""
        tag = self.tag(file, code)
        return tag.numbers[0] if tag is not None and tag.numbers else None

    def _native_fractions(self, data: bytes, dtype: int) -> bytes:
        """Convert the bytes of TIFF fractions (RATIONAL, SRATIONAL) from big-endian to little-endian if necessary.

        ``dtype`` is the TIFF type. Data of other types is returned unchanged.
        """
        if dtype not in (5, 10) or self.byteorder == "<":
            return data
        return np.frombuffer(data, ">u4").astype("<u4").tobytes()


def read_directories(file: BinaryIO, name: str) -> list[Directory]:
    """Read all directories of a TIFF, and check that all tag values are inside the file.

    Raises:
        InputError: the file is truncated, damaged, or has no directory.

    """
    size = file.seek(0, 2)
    reader = _CheckedReader(file, name, size)
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


def _entries(reader: _CheckedReader, at: int, order: str, *, big: bool) -> tuple[dict[int, Entry], int]:
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
class _CheckedReader:
    """File reader that checks each read against the file size. Its error names the part of the file that is missing."""

    file: BinaryIO
    name: str
    size: int

    def check(self, at: int, count: int, part: str) -> None:
        if at + count > self.size:
            raise truncated(self.name, self.size, at + count, part)

    def read(self, at: int, count: int, part: str) -> bytes:
        self.check(at, count, part)
        self.file.seek(at)
        return self.file.read(count)


def truncated(name: str, size: int, needed: int, part: str) -> InputError:
    """Return the error for a truncated file, which has only ``size`` bytes but needs at least ``needed`` bytes.

    ``part`` names the part of the file that is incomplete, such as "the header".
    """
    return InputError(
        f"{name} is truncated or damaged: {part} reaches to byte {needed}, the file has {size}; fetch it again"
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
"""Maps the name of a GDAL metadata item to the number of the TIFF tag that holds it."""

_QUOTES = {"&quot;": '"', "&apos;": "'"}
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 does not allow."""


@dataclass(frozen=True, slots=True)
class GdalMetadata:
    """Contents of the GDAL_METADATA tag of one raster.

    GDAL escapes each text twice, once by itself and once in its XML writer: the file holds "&amp;amp;" for "&".
    """

    items: Mapping[str, str] = field(default_factory=dict)
    """Metadata items of the whole raster, by name."""
    descriptions: Mapping[int, str] = field(default_factory=dict)
    """Description of each band, by band index from 0."""
    band_items: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """Metadata items of each band, by band index from 0. Description, unit, colour, scale and offset are stored in
    separate fields."""
    units: Mapping[int, str] = field(default_factory=dict)
    """Unit of the values of each band (GDAL's "unit type"), by band index from 0."""
    colours: Mapping[int, str] = field(default_factory=dict)
    """Colour interpretation of each band, such as "Undefined" or "Alpha", by band index from 0. These colours take
    precedence over TIFF's own tags."""
    scales: Mapping[int, str] = field(default_factory=dict)
    """Scale factor of each band as text, such as "0.0001". The keys are band indices from 0."""
    offsets: Mapping[int, str] = field(default_factory=dict)
    """Offset of each band, stored as text. An offset is added after scaling. The keys are band indices from 0."""

    @classmethod
    def from_xml(cls, xml: str) -> GdalMetadata:
        """Parse the XML of a GDAL_METADATA tag. As in GDAL, XML that is not well-formed counts as empty.

        Only items of the default domain are read.
        """
        if "<!" in xml.replace("<!--", ""):
            return cls()  # a document type, which could declare entities
        try:
            root = ET.fromstring(xml)  # noqa: S314 - entities are excluded above
        except ET.ParseError:
            return cls()
        items: dict[str, str] = {}
        bands: dict[int, dict[str, str]] = {}
        by_role: dict[str, dict[int, str]] = {
            role: {} for role in ("description", "unittype", "colorinterp", "scale", "offset")
        }
        for item in root.iter("Item"):
            name, role, sample = item.get("name"), item.get("role"), item.get("sample", "")
            text = unescape(item.text or "", _QUOTES)
            if name is None or item.get("domain"):
                continue
            if not sample:
                items[name] = text
            elif sample.isdecimal() and role in by_role:
                by_role[role][int(sample)] = text
            elif sample.isdecimal() and role is None:
                bands.setdefault(int(sample), {})[name] = text
        return cls(
            items,
            by_role["description"],
            bands,
            by_role["unittype"],
            by_role["colorinterp"],
            by_role["scale"],
            by_role["offset"],
        )


def checked_xml(name: str, text: str) -> str:
    """Return the text of a metadata item, or raise SaveError if it has a character that XML does not allow."""
    bad = _FORBIDDEN.search(text)
    if bad:
        raise SaveError(f"metadata item {name!r} has the character {bad[0]!r}, which GDAL_METADATA (XML) cannot hold")
    return text
