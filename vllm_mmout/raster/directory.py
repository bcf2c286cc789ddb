"""The directories of a TIFF file, read and checked against its length (TIFF 6.0, section 2; BigTIFF).

tifffile passes over a tag whose value lies behind the end of the file. A truncated raster would lose its place on Earth
without a word; hence this walk before anything is decoded.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Literal

import numpy as np

from vllm_mmout.errors import InputError
from vllm_mmout.raster.geotag import GeoTag

if TYPE_CHECKING:
    from collections.abc import Mapping

NUMBERS = {
    1: "u1",
    3: "u2",
    4: "u4",
    6: "i1",
    8: "i2",
    9: "i4",
    11: "f4",
    12: "f8",
    13: "u4",
    16: "u8",
    17: "i8",
    18: "u8",
}
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

    def _native_fractions(self, data: bytes, dtype: int) -> bytes:
        """The bytes of fractions in little-endian order, in which files are written; other bytes as they are."""
        if dtype not in (5, 10) or self.byteorder == "<":
            return data
        return np.frombuffer(data, ">u4").astype("<u4").tobytes()


def read_directories(file: BinaryIO, name: str) -> list[Directory]:
    """Walk through all directories of a TIFF.

    Args:
        file: the file, seekable.
        name: what to call it in an error.

    Raises:
        InputError: the file ends before a directory or the value of a tag does.

    """
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
    """The entries of the directory at a place, and where it ends."""
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
