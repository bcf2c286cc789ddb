"""Percent-escapes (RFC 3986, 2.1) in texts of any length.

``urllib.parse.unquote_to_bytes`` makes some objects of each escape: of 64 MiB that is GiB of memory, and many seconds
in which nothing else runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

_PIECE: Final = 1 << 20
"""Characters that are decoded at once."""
_ESCAPE: Final = ord("%")
_NO_DIGIT: Final = 255
_DIGITS: Final = np.full(256, _NO_DIGIT, np.uint8)
"""Letter -> the number that it is as a hexadecimal digit."""
_DIGITS[np.frombuffer(b"0123456789abcdefABCDEF", np.uint8)] = [*range(16), *range(10, 16)]


def unescaped(text: str | bytes | bytearray, start: int = 0) -> Iterator[bytes]:
    """The bytes of a text, piece by piece; a "%" that begins no escape stands for itself."""
    while start < len(text):
        end = start + _PIECE
        piece = text[start:end]
        data = piece.encode("ascii") if isinstance(piece, str) else bytes(piece)
        cut = data.find(b"%", -2)  # its digits are in the next piece
        if cut > 0 and end < len(text):
            data, end = data[:cut], start + cut
        yield _decoded(data)
        start = end


def _decoded(data: bytes) -> bytes:
    if b"%" not in data:
        return data
    codes = np.frombuffer(data, np.uint8)
    digits = _DIGITS[codes]
    begins = (codes[:-2] == _ESCAPE) & (digits[1:-1] != _NO_DIGIT) & (digits[2:] != _NO_DIGIT)
    escapes = np.flatnonzero(begins)
    made = codes.copy()
    made[escapes] = digits[escapes + 1] << 4 | digits[escapes + 2]
    kept = np.ones(len(codes), np.bool_)
    kept[escapes + 1] = kept[escapes + 2] = False
    return made[kept].tobytes()
