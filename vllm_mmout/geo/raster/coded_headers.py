"""What coded pictures say of themselves, read from their first bytes before a decoder sees them.

A strip or tile of a TIFF may be a whole picture of its own. Its decoder makes room for the size that stands there, not
for the one that the TIFF gives the tile: some kilobytes could take all memory.

GDAL hands the names of coordinate systems in the GML of a JPEG 2000 (OGC 05-047) to PROJ, which takes one with
``init=`` in it, whatever stands before, for a PROJ string, and opens the file that it names.
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
"""Starts of frames; the last one is of JPEG-LS (ITU-T T.87)."""
_JPEG_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})
_START_OF_SCAN = 0xDA
_RATIOS = ((1, 1), (1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))
"""Width to height, by the number in a JPEG XL; the first is not used."""
_JXL_BITS = (9, 13, 18, 30)
_JXR_WIDTH, _JXR_HEIGHT = 0xBC80, 0xBC81
_LERC = b"Lerc2 "


def coded_size(data: bytes) -> tuple[int, int, int] | None:
    """Height, width and number of values of the picture that a coded segment holds; None where that is not known.

    A JPEG 2000 of many tiles counts as what they take before any is decoded, if that is more.
    """
    reader = next((reader for at, begin, reader in _FORMATS if data.startswith(begin, at)), None)
    try:
        return None if reader is None else reader(data)
    except (struct.error, IndexError):  # it ends within what says it
        return None


def _of_png(data: bytes) -> tuple[int, int, int] | None:
    width, height = struct.unpack_from(">II", data, 16)
    return height, width, height * width * (1, 1, 3, 1, 2, 3, 4, 4)[data[25] & 7]


def _of_jpeg(data: bytes) -> tuple[int, int, int] | None:
    """ITU-T T.81, annex B."""
    at = 2
    while (at := data.find(0xFF, at)) >= 0:  # decoders pass over what stands between
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
    found = None if at is None else codestream(data[at : at + 42])
    if found is None:
        return None
    height, width = found.height, found.width
    values = height * width * found.bands
    return height, width, values if found.tile == (height, width) else max(values, found.table_bytes)


def _of_jpeg_xl(data: bytes) -> tuple[int, int, int] | None:
    """ISO/IEC 18181-1, SizeHeader; its bands come later, and are at most four of one picture."""
    at = 0
    if data.startswith(b"\0"):
        found = _content(data, b"jxlc")
        part = _content(data, b"jxlp") if found is None else None
        at = found if found is not None else -1 if part is None else part + 4
    if at < 0:
        return None
    bits, used = int.from_bytes(data[at + 2 : at + 14], "little"), 0

    def take(count: int) -> int:  # the lowest first
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
    """ITU-T T.832, annex A: a container like TIFF."""
    (at,) = struct.unpack_from("<I", data, 4)
    (count,) = struct.unpack_from("<H", data, at)
    found = {}
    for place in range(at + 2, at + 2 + 12 * count, 12):
        code, kind = struct.unpack_from("<HH", data, place)
        found[code] = struct.unpack_from({1: "<B", 3: "<H"}.get(kind, "<I"), data, place + 8)[0]
    height, width = found.get(_JXR_HEIGHT), found.get(_JXR_WIDTH)
    return None if height is None or width is None else (height, width, height * width * 4)


def _of_webp(data: bytes) -> tuple[int, int, int] | None:
    """RFC 9649, 2.5 to 2.7."""
    kind, said = data[12:16], data[20:30]
    if len(said) < 10:
        return None
    if kind == b"VP8X":
        width, height = int.from_bytes(said[4:7], "little") + 1, int.from_bytes(said[7:10], "little") + 1
    elif kind == b"VP8L":
        packed = int.from_bytes(said[1:5], "little")
        width, height = (packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1
    elif kind == b"VP8 ":
        width, height = (number & 0x3FFF for number in struct.unpack_from("<HH", said, 6))
    else:
        return None
    return height, width, height * width * 4


def _of_lerc(data: bytes) -> tuple[int, int, int]:
    """The header of Lerc2, as its reference implementation writes it; several of them follow each other as bands."""
    (version,) = struct.unpack_from("<i", data, 6)
    height, width, depth = struct.unpack_from("<iii", data, 14 if version >= 3 else 10)
    bands = data.count(_LERC) * (max(depth, 1) if version >= 4 else 1)
    return height, width, height * width * bands


def _content(data: bytes, wanted: bytes) -> int | None:
    """Where the contents of the first box of a kind begin."""
    return next((at for kind, at in boxes(lambda at, count: data[at : at + count]) if kind == wanted), None)


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
"""Start of a codestream, and of its size."""
_TILE_BYTES, _TILE_BAND_BYTES = 6144, 1280
"""What OpenJPEG takes for a tile, and for a band of one, before it reads any."""
_KINDS = (b"asoc", b"xml ")
"""Boxes with XML in them."""
_LARGEST = 2**24
"""Bytes of all of them; those of Sentinel-2 have three thousand."""
_PROJ_STRING = re.compile(r"[\s+\"'>](init|proj)\s*=", re.IGNORECASE)
_APART = re.compile(r"<!\[CDATA\[|\]\]>|<!--.*?-->", re.DOTALL)


def check_gml(file: SharedFile) -> None:
    """Refuse a JPEG 2000 file whose GML may make PROJ open a file."""
    left = _LARGEST
    found = list(boxes(file.read_at))
    for kind, at in found:
        if kind not in _KINDS:
            continue
        end = min((other for _, other in found if other > at), default=file.size)
        left -= end - at
        if left < 0:
            raise InputError(
                f"{file.name} has more than {_LARGEST >> 20} MiB of XML; write it anew, as with gdal_translate"
            )
        text = _APART.sub("", file.read_at(at, end - at).decode("latin-1"))
        if _PROJ_STRING.search(html.unescape(text)):
            raise InputError(
                f"{file.name} has GML in which a coordinate system is a PROJ string, which may name a file; write it"
                " anew with a code, as with gdal_translate -a_srs EPSG:n"
            )


@dataclass(frozen=True, slots=True)
class Codestream:
    """The size that a codestream says it has (ISO/IEC 15444-1, A.5.1)."""

    height: int
    width: int
    bands: int
    tile: tuple[int, int]
    """Height and width of a tile, as far as the image goes."""
    table_bytes: int
    """What is taken for its tiles before any is decoded."""


def codestream(head: bytes) -> Codestream | None:
    """The size in the first 42 bytes of a codestream; None where they are none, or of an image without pixels."""
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
    """The kind of each box of a file and where its contents begin (ISO/IEC 14496-12); a bare codestream is one."""
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
        if length < start:  # 0: to the end of the file; all else is damaged
            return
        at += length
