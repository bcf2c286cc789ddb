"""What a JPEG 2000 file says of itself (ISO/IEC 15444-1, annexes A and I), to tell what Pillow does not read right."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_mmout.raster.shared_file import SharedFile

_GEOJP2 = bytes.fromhex("b14bf8bd083d4b43a5ae8cd7d5a6ce03")
"""The UUID of a box with a GeoTIFF in it, which says the place."""
_CODESTREAM = b"\xff\x4f\xff\x51"
"""Start of a codestream, and of its size."""
TILE_BYTES, TILE_BAND_BYTES = 6144, 1280
"""What OpenJPEG takes for a tile, and for a band of one, before it reads any."""


def beyond_pillow(file: SharedFile) -> str | None:
    """What of a JPEG 2000 file Pillow would leave out or change, in words; None where it reads all of it.

    Args:
        file: the file. What is damaged in it is left to the reader to find.

    """
    for kind, at in boxes(file):
        if kind == b"asoc" or (kind == b"uuid" and file.read_at(at, 16) == _GEOJP2):
            return "a georeference"
        if kind == b"jp2c":
            return _of_codestream(file.read_at(at, 44))
    return None


def boxes(file: SharedFile) -> Iterator[tuple[bytes, int]]:
    """The kind and the place of the contents of each box of the file; a bare codestream counts as one."""
    if file.read_at(0, 4) == _CODESTREAM:
        yield b"jp2c", 0
        return
    at = 0
    while len(header := file.read_at(at, 16)) >= 8:
        length, kind = struct.unpack(">I4s", header[:8])
        start = 16 if length == 1 else 8
        if length == 1 and len(header) == 16:
            (length,) = struct.unpack(">Q", header[8:])
        yield kind, at + start
        if length < start:  # 0: to the end of the file; all else is damaged
            return
        at += length


def _of_codestream(head: bytes) -> str | None:
    if len(head) < 44 or not head.startswith(_CODESTREAM):
        return None
    right, lower, left, upper = struct.unpack(">4I", head[8:24])
    (bands,) = struct.unpack(">H", head[40:42])
    bits, signed = (head[42] & 0x7F) + 1, bool(head[42] & 0x80)
    height, width = lower - upper, right - left
    if bands > 4 or signed or bits > (16 if bands == 1 else 8):
        return f"{bands} band{'s' * (bands > 1)} of {bits} bits{', signed' * signed}"
    if Image.MAX_IMAGE_PIXELS is not None and height * width > 2 * Image.MAX_IMAGE_PIXELS:
        return f"{height} x {width} pixels"
    return None
