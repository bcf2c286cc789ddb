"""The size that a coded picture says it has, read from its first bytes.

A strip or tile of a TIFF may be a whole picture of its own. Its decoder makes room for the size that stands there, not
for the one that the TIFF gives the tile: some kilobytes could take all memory.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})
_START_OF_SCAN = 0xDA
_RATIOS = ((1, 1), (1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))
"""Width to height, by the number in a JPEG XL; the first is not used."""
_JXL_BITS = (9, 13, 18, 30)
_JXR_WIDTH, _JXR_HEIGHT = 0xBC80, 0xBC81
_HEAD = 256
_DEFLATE = b"\x78"
"""What deflate begins with, which may be around LERC."""


def coded_size(data: bytes) -> tuple[int, int, int] | None:
    """Height, width and number of values of the picture that a coded segment holds; None where that is not known.

    Args:
        data: JPEG, PNG, JPEG 2000, JPEG XL, JPEG XR, WebP or LERC, as stored.

    """
    try:
        return _size(data)
    except (struct.error, IndexError, zlib.error):  # it ends within what says it
        return None


def _size(data: bytes) -> tuple[int, int, int] | None:
    if data.startswith(_DEFLATE):
        data = zlib.decompressobj().decompress(data, _HEAD)
    reader = next((reader for begin, reader in _FORMATS if data.startswith(begin)), None)
    return None if reader is None else reader(data)


def _of_png(data: bytes) -> tuple[int, int, int] | None:
    width, height = struct.unpack_from(">II", data, 16)
    return height, width, height * width * (1, 1, 3, 1, 2, 3, 4, 4)[data[25] & 7]


def _of_jpeg(data: bytes) -> tuple[int, int, int] | None:
    """ITU-T T.81, annex B."""
    at = 2
    while data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF or marker in _JPEG_ALONE:
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
    at = _content(data, b"jp2c") if data.startswith(b"\0") else 0
    if at is None:
        return None
    right, lower, left, upper = struct.unpack_from(">4I", data, at + 8)
    (bands,) = struct.unpack_from(">H", data, at + 40)
    height, width = lower - upper, right - left
    return height, width, height * width * bands


def _of_jpeg_xl(data: bytes) -> tuple[int, int, int] | None:
    """ISO/IEC 18181-1, SizeHeader; its bands come later, and are at most four of one picture."""
    at = 0
    if data.startswith(b"\0"):
        found = _content(data, b"jxlc")
        part = _content(data, b"jxlp") if found is None else None
        at = found if found is not None else -1 if part is None else part + 4
    if at < 0:
        return None
    bits = _Bits(data[at + 2 : at + 14])
    small = bits.take(1)
    height = _jxl_number(bits, small=small)
    ratio = bits.take(3)
    width = height * _RATIOS[ratio][0] // _RATIOS[ratio][1] if ratio else _jxl_number(bits, small=small)
    return height, width, height * width * 4


def _jxl_number(bits: _Bits, *, small: int) -> int:
    return (bits.take(5) + 1) * 8 if small else bits.take(_JXL_BITS[bits.take(2)]) + 1


class _Bits:
    """Numbers of some bits, the lowest first."""

    def __init__(self, data: bytes) -> None:
        self._value = int.from_bytes(data, "little")

    def take(self, count: int) -> int:
        value = self._value & ((1 << count) - 1)
        self._value >>= count
        return value


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
    return height, width, height * width * (max(depth, 1) if version >= 4 else 1)


def _content(data: bytes, wanted: bytes) -> int | None:
    """Where the contents of the first box of a kind begin (ISO/IEC 14496-12)."""
    return next((at for kind, at in _boxes(data) if kind == wanted), None)


def _boxes(data: bytes) -> Iterator[tuple[bytes, int]]:
    at = 0
    while at + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        start = 8
        if length == 1:
            (length,) = struct.unpack_from(">Q", data, at + 8)
            start = 16
        yield kind, at + start
        if length < start:
            return
        at += length


_FORMATS = (
    (b"\xff\xd8", _of_jpeg),
    (b"\x89PNG\r\n\x1a\n", _of_png),
    (b"\xff\x4f\xff\x51", _of_jpeg2000),
    (b"\0\0\0\x0cjP  ", _of_jpeg2000),
    (b"\xff\x0a", _of_jpeg_xl),
    (b"\0\0\0\x0cJXL ", _of_jpeg_xl),
    (b"II\xbc", _of_jpeg_xr),
    (b"RIFF", _of_webp),
    (b"Lerc2 ", _of_lerc),
)
