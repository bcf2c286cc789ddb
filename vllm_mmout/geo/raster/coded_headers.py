"""Check the headers of encoded pictures (JPEG, PNG, JPEG 2000, ...) before a decoder reads them.

A strip or tile of a TIFF may be a complete encoded picture. Its decoder allocates memory for the size in the picture's
own header, not for the tile size in the TIFF, so that some kilobytes could fill the memory.

GDAL passes coordinate system names in the GML of a JPEG 2000 (OGC 05-047) to PROJ. PROJ reads any name that contains
``init=`` as a PROJ string, and opens the file that the string names.
"""

from __future__ import annotations

import html
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_mmout.errors import InputError

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.files import SharedFile

_JPEG_SIZES = (frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}) | {0xF7}
"""JPEG markers that start a frame. The height and width of the image follow such a marker. 0xF7 starts a frame of
JPEG-LS (ITU-T T.87)."""
_JPEG_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})
_START_OF_SCAN = 0xDA
_RATIOS = ((1, 1), (1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))
"""Ratios of width to height, indexed by their number in a JPEG XL header. With number 0 the header states the width
itself."""
_JXL_BITS = (9, 13, 18, 30)
_JXR_WIDTH, _JXR_HEIGHT = 0xBC80, 0xBC81
_LERC = b"Lerc2 "


def coded_size(data: bytes) -> tuple[int, int, int] | None:
    """Return height, width and total number of pixel values of an encoded picture, or None if the header lacks them.

    For a JPEG 2000 of many tiles, the number is at least the bytes that its decoder allocates for the table of tiles.
    """
    reader = next((reader for at, begin, reader in _FORMATS if data.startswith(begin, at)), None)
    try:
        return None if reader is None else reader(data)
    except (struct.error, IndexError):  # the data ends within its header
        return None


def _of_png(data: bytes) -> tuple[int, int, int] | None:
    width, height = struct.unpack_from(">II", data, 16)
    return height, width, height * width * (1, 1, 3, 1, 2, 3, 4, 4)[data[25] & 7]


def _of_jpeg(data: bytes) -> tuple[int, int, int] | None:
    """Read height, width and total number of pixel values from a JPEG header (ITU-T T.81, annex B)."""
    at = 2
    while (at := data.find(0xFF, at)) >= 0:  # decoders skip bytes between markers
        marker = data[at + 1]
        if marker in (0, 0xFF) or marker in _JPEG_ALONE:
            at += 1 if marker == 0xFF else 2
            continue
        if marker in _JPEG_SIZES:
            height, width, bands = struct.unpack_from(">HHB", data, at + 5)
            return height, width, height * width * bands
        if marker == _START_OF_SCAN:
            return None
        at += 2 + struct.unpack_from(">H", data, at + 2)[0]
    return None


def _of_jpeg2000(data: bytes) -> tuple[int, int, int] | None:
    at = _content(data, b"jp2c")
    stream = None if at is None else codestream(data[at : at + 42])
    if stream is None:
        return None
    height, width = stream.height, stream.width
    values = height * width * stream.bands
    return height, width, values if stream.tile == (height, width) else max(values, stream.table_bytes)


def _of_jpeg_xl(data: bytes) -> tuple[int, int, int] | None:
    """Read the size from a JPEG XL header (ISO/IEC 18181-1, SizeHeader). Assume four bands, the maximum."""
    at = 0
    if data.startswith(b"\0"):
        whole = _content(data, b"jxlc")
        part = _content(data, b"jxlp") if whole is None else None
        at = whole if whole is not None else -1 if part is None else part + 4
    if at < 0:
        return None
    bits, used = int.from_bytes(data[at + 2 : at + 14], "little"), 0

    def take(count: int) -> int:  # the lowest bits first
        nonlocal used
        used += count
        return bits >> (used - count) & ((1 << count) - 1)

    def side() -> int:
        return (take(5) + 1) * 8 if small else take(_JXL_BITS[take(2)]) + 1

    small = take(1)
    height = side()
    ratio = take(3)
    width = height * _RATIOS[ratio][0] // _RATIOS[ratio][1] if ratio else side()
    return height, width, height * width * 4


def _of_jpeg_xr(data: bytes) -> tuple[int, int, int] | None:
    """Read the size from a JPEG XR header (ITU-T T.832, annex A), similar to TIFF. Assume four bands, the maximum."""
    (at,) = struct.unpack_from("<I", data, 4)
    (count,) = struct.unpack_from("<H", data, at)
    tags = {}
    for place in range(at + 2, at + 2 + 12 * count, 12):
        code, kind = struct.unpack_from("<HH", data, place)
        tags[code] = struct.unpack_from({1: "<B", 3: "<H"}.get(kind, "<I"), data, place + 8)[0]
    height, width = tags.get(_JXR_HEIGHT), tags.get(_JXR_WIDTH)
    return None if height is None or width is None else (height, width, height * width * 4)


def _of_webp(data: bytes) -> tuple[int, int, int] | None:
    """Read the size from a WebP header (RFC 9649, 2.5 to 2.7). Assume four bands, the maximum."""
    kind, header = data[12:16], data[20:30]
    if len(header) < 10:
        return None
    if kind == b"VP8X":
        width, height = int.from_bytes(header[4:7], "little") + 1, int.from_bytes(header[7:10], "little") + 1
    elif kind == b"VP8L":
        packed = int.from_bytes(header[1:5], "little")
        width, height = (packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1
    elif kind == b"VP8 ":
        width, height = (number & 0x3FFF for number in struct.unpack_from("<HH", header, 6))
    else:
        return None
    return height, width, height * width * 4


def _of_lerc(data: bytes) -> tuple[int, int, int]:
    """Read height, width and total number of pixel values from LERC data.

    The data has one header for all bands, or one header per band.
    """
    (version,) = struct.unpack_from("<i", data, 6)
    height, width, depth = struct.unpack_from("<iii", data, 14 if version >= 3 else 10)
    bands = data.count(_LERC) * (max(depth, 1) if version >= 4 else 1)
    return height, width, height * width * bands


def _content(data: bytes, box_kind: bytes) -> int | None:
    """Return the offset of the content of the first box of type ``box_kind``, or None without such a box."""
    return next((at for kind, at in boxes(lambda at, count: data[at : at + count]) if kind == box_kind), None)


_FORMATS = (
    (0, b"\xff\xd8", _of_jpeg),
    (0, b"\x89PNG\r\n\x1a\n", _of_png),
    (0, b"\xff\x4f\xff\x51", _of_jpeg2000),
    (4, b"jP  ", _of_jpeg2000),
    (0, b"\xff\x0a", _of_jpeg_xl),
    (4, b"JXL ", _of_jpeg_xl),
    (0, b"II\xbc", _of_jpeg_xr),
    (0, b"RIFF", _of_webp),
    (0, _LERC, _of_lerc),
)


_CODESTREAM = b"\xff\x4f\xff\x51"
"""First bytes of a JPEG 2000 codestream."""
_TILE_BYTES, _TILE_BAND_BYTES = 6144, 1280
"""Bytes that OpenJPEG allocates per tile of a JPEG 2000, and per band of a tile, before it decodes the first tile."""
_KINDS = (b"asoc", b"xml ")
"""Types of JPEG 2000 boxes that contain XML."""
_LARGEST = 2**24
"""Largest accepted size in bytes of all XML in a JPEG 2000 file. A Sentinel-2 file has about 3000 bytes of XML."""
_PROJ_STRING = re.compile(r"[\s+\"'>](init|proj)\s*=", re.IGNORECASE)
_APART = re.compile(r"<!\[CDATA\[|\]\]>|<!--.*?-->", re.DOTALL)


def check_gml(file: SharedFile) -> None:
    """Raise InputError if a JPEG 2000 file contains GML that could make PROJ open another file."""
    left = _LARGEST
    all_boxes = list(boxes(file.read_at))
    for kind, at in all_boxes:
        if kind not in _KINDS:
            continue
        end = min((other for _, other in all_boxes if other > at), default=file.size)
        left -= end - at
        if left < 0:
            raise InputError(
                f"{file.name} has more than {_LARGEST >> 20} MiB of XML; rewrite it, for example with gdal_translate"
            )
        text = _APART.sub("", file.read_at(at, end - at).decode("latin-1"))
        if _PROJ_STRING.search(html.unescape(text)):
            raise InputError(
                f"{file.name} has GML in which a coordinate system is a PROJ string, which may name a file; rewrite it"
                " with a code, for example with gdal_translate -a_srs EPSG:n"
            )


@dataclass(frozen=True, slots=True)
class Codestream:
    """Size of the image and its tiles, from the header of a JPEG 2000 codestream (ISO/IEC 15444-1, A.5.1)."""

    height: int
    width: int
    bands: int
    tile: tuple[int, int]
    """Height and width of a tile in pixels, at most the height and width of the image."""
    table_bytes: int
    """Bytes that OpenJPEG allocates for its table of tiles before it decodes the first tile."""


def codestream(head: bytes) -> Codestream | None:
    """Parse the first 42 bytes of a JPEG 2000 codestream. Return None if they are invalid or declare 0 pixels."""
    if len(head) < 42 or not head.startswith(_CODESTREAM):
        return None
    right, lower, left, upper, tile_width, tile_height = struct.unpack_from(">6I", head, 8)
    (bands,) = struct.unpack_from(">H", head, 40)
    height, width = lower - upper, right - left
    if min(height, width, tile_width, tile_height, bands) < 1:
        return None
    tiles = -(-height // tile_height) * -(-width // tile_width)
    tile = min(tile_height, height), min(tile_width, width)
    return Codestream(height, width, bands, tile, tiles * (_TILE_BYTES + bands * _TILE_BAND_BYTES))


def boxes(read_at: Callable[[int, int], bytes]) -> Iterator[tuple[bytes, int]]:
    """Yield the type and the content offset of each box of a JPEG 2000 or JPEG XL file (ISO/IEC 14496-12).

    A JPEG 2000 codestream without boxes counts as one box of type "jp2c".
    """
    if read_at(0, 4) == _CODESTREAM:
        yield b"jp2c", 0
        return
    at = 0
    while len(header := read_at(at, 16)) >= 8:
        length, kind = struct.unpack(">I4s", header[:8])
        start = 16 if length == 1 else 8
        if length == 1 and len(header) == 16:
            (length,) = struct.unpack(">Q", header[8:])
        yield kind, at + start
        if length < start:  # 0 means up to the end of the file; other values are damaged
            return
        at += length
