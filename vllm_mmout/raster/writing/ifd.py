"""Writing the directories of a TIFF file (TIFF 6.0, section 2; BigTIFF), all of them in front of all pixels.

That is what makes a GeoTIFF cloud-optimised (OGC 21-026): whoever has fetched the first kilobytes knows where every
block of the image and of its overviews lies.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vllm_mmout.raster.directory import NUMBERS
from vllm_mmout.raster.geotag import GeoTag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

LONG = 4
RATIONAL = 5
LONG8 = 16

_STRIP_TABLES, _TILE_TABLES = (273, 279), (324, 325)
"""Codes of the tags that say where strips or tiles lie, and how large they are."""
_CLASSIC_LIMIT = 2**32 - 1
"""Bytes of a file above which offsets of 32 bits do not do."""


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """One image of a file: the raster, or an overview of it."""

    tags: Sequence[GeoTag]
    """All but those that say where its blocks lie."""
    sizes: NDArray[np.int64]
    """Bytes of each encoded block, in the order of the file."""
    tiled: bool
    """Whether the blocks are tiles, rather than strips."""


def head(images: Sequence[Image]) -> bytes:
    """The beginning of a file, up to its pixels; a BigTIFF where offsets of 32 bits do not reach.

    The blocks must follow at once and without gaps: those of the last image first, those of the first one last.

    Args:
        images: the raster and its overviews, from large to small.

    """
    nbytes = sum(int(image.sizes.sum()) for image in images)
    nowhere = [np.zeros(len(image.sizes), np.int64) for image in images]
    big = False
    size = len(_written(images, nowhere, big=big))
    if size + nbytes > _CLASSIC_LIMIT:
        big = True
        size = len(_written(images, nowhere, big=big))
    offsets = []
    for image in reversed(images):
        ends = size + np.cumsum(image.sizes)
        offsets.append(ends - image.sizes)
        size = int(ends[-1])
    return _written(images, offsets[::-1], big=big)


def _written(images: Sequence[Image], offsets: Sequence[NDArray[np.int64]], *, big: bool) -> bytes:
    """Header and directories, each with its values behind it."""
    data = bytearray(struct.pack("<2sHHHQ", b"II", 43, 8, 0, 16) if big else struct.pack("<2sHI", b"II", 42, 8))
    for number, (image, places) in enumerate(zip(images, offsets, strict=True)):
        where, long = _TILE_TABLES if image.tiled else _STRIP_TABLES
        tables = [_table(where, LONG8 if big else LONG, places), _table(long, LONG, image.sizes)]
        entries = sorted([*((tag.code, tag.dtype, tag.count, _packed(tag)) for tag in image.tags), *tables])
        data += _directory(entries, len(data), big=big, last=number == len(images) - 1)
    return bytes(data)


def _directory(entries: Sequence[tuple[int, int, int, bytes]], at: int, *, big: bool, last: bool) -> bytes:
    """One directory that lies at a place of the file, and its values that are too long for it."""
    count_format, entry_format, offset_format = ("<Q", "<HHQ", "<Q") if big else ("<H", "<HHI", "<I")
    inline = struct.calcsize(offset_format)
    entry_size = struct.calcsize(entry_format) + inline
    behind = at + struct.calcsize(count_format) + len(entries) * entry_size + inline
    table, values = bytearray(struct.pack(count_format, len(entries))), bytearray()
    for code, dtype, count, data in entries:
        table += struct.pack(entry_format, code, dtype, count)
        if len(data) <= inline:
            table += data.ljust(inline, b"\0")
        else:
            table += struct.pack(offset_format, behind + len(values))
            values += data + bytes(-len(data) % 2)  # TIFF 6.0: a value begins at an even byte
    end = behind + len(values)
    padding = -end % 8
    table += struct.pack(offset_format, 0 if last else end + padding)
    return bytes(table + values + bytes(padding))


def _table(code: int, dtype: int, numbers: NDArray[np.int64]) -> tuple[int, int, int, bytes]:
    return code, dtype, len(numbers), numbers.astype(f"<{NUMBERS[dtype]}").tobytes()


def _packed(tag: GeoTag) -> bytes:
    """A tag's value as it stands in the file."""
    if isinstance(tag.value, bytes):
        return tag.value
    return np.array(tag.value, f"<{NUMBERS[tag.dtype]}").tobytes()
