"""The size that a coded picture says it has, read from its first bytes.

A strip or tile of a TIFF may be a whole picture of its own. Its decoder makes room for the size that stands there, not
for the one that the TIFF gives the tile: some kilobytes could take all memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from vllm_mmout.raster.jpeg2000 import TILE_BAND_BYTES, TILE_BYTES

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

    Args:
        data: JPEG, JPEG-LS, PNG, JPEG 2000, JPEG XL, JPEG XR, WebP or LERC. A JPEG 2000 of many tiles counts as what
            they take before any is decoded, if that is more.

    """
    try:
        return _size(data)
    except (struct.error, IndexError):  # it ends within what says it
        return None


def _size(data: bytes) -> tuple[int, int, int] | None:
    reader = next((reader for at, begin, reader in _FORMATS if data.startswith(begin, at)), None)
    return None if reader is None else reader(data)


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
    at = _content(data, b"jp2c") if data.startswith(b"\0") else 0
    if at is None:
        return None
    right, lower, left, upper, tile_width, tile_height = struct.unpack_from(">6I", data, at + 8)
    (bands,) = struct.unpack_from(">H", data, at + 40)
    height, width = lower - upper, right - left
    if min(height, width, tile_height, tile_width) < 1:
        return None
    tiles = -(-height // tile_height) * -(-width // tile_width)
    values = height * width * bands
    return height, width, values if tiles == 1 else max(values, tiles * (TILE_BYTES + bands * TILE_BAND_BYTES))


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
    bands = data.count(_LERC) * (max(depth, 1) if version >= 4 else 1)
    return height, width, height * width * bands


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
