"""Decode data URLs and percent-escapes in chunks, so that long texts need little memory.

``urllib.parse.unquote_to_bytes`` makes several objects for each escape. For a text of 64 MiB it takes GiB of memory,
and holds the GIL for many seconds.
"""

from __future__ import annotations

import re
import tempfile
from base64 import b64decode
from collections.abc import Iterator
from contextlib import ExitStack
from typing import BinaryIO, Final, cast
from urllib.parse import unquote

import numpy as np

from vllm_mmout.errors import InputError
from vllm_mmout.serving.options import flag

_PIECE: Final = 1 << 20
"""Number of characters of a text whose percent-escapes are decoded at a time."""
_ESCAPE: Final = ord("%")
_NO_DIGIT: Final = 255
_DIGITS: Final = np.full(256, _NO_DIGIT, np.uint8)
"""Maps each byte to its value as a hexadecimal digit, or to `_NO_DIGIT`."""
_DIGITS[np.frombuffer(b"0123456789abcdefABCDEF", np.uint8)] = [*range(16), *range(10, 16)]


def unescaped(text: str | bytes | bytearray, start: int = 0) -> Iterator[bytes]:
    """Decode the percent-escapes of a text and yield the bytes in chunks. A "%" without two digits is kept."""
    while start < len(text):
        end = start + _PIECE
        piece = text[start:end]
        data = piece.encode("ascii") if isinstance(piece, str) else bytes(piece)
        cut = data.find(b"%", -2)  # the digits of the escape are in the next piece
        if cut > 0 and end < len(text):
            data, end = data[:cut], start + cut
        yield _decoded(data)
        start = end


def form_field(field: bytearray) -> tuple[str, str]:
    """Return (name, value) of a field of a form sent as ``application/x-www-form-urlencoded``.

    Raise ValueError if it is invalid.
    """
    name, sign, value = (b"".join(unescaped(part.replace(b"+", b" "))).decode() for part in field.partition(b"="))
    if not sign or not field.isascii():
        raise ValueError(f"{field[:100]!r} is no field")
    return name, value


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


_LETTERS: Final = bytes.maketrans(b"-_", b"+/")
"""Translation table from URL-safe base64 to standard base64."""
_IN_MEMORY: Final = 2**23
_HEAD: Final = re.compile(r"data:(?P<head>[^,]{0,1000}),", re.IGNORECASE)


def open_data_url(text: str, limit: int) -> tuple[BinaryIO, str]:
    """Decode the file in a data URL, and return (file, name). Raise InputError if the file exceeds ``limit`` bytes.

    The call blocks.
    """
    match = _HEAD.match(text)
    if match is None:
        raise InputError("a data URL must be data:image/png;base64,..., got one without a comma")
    _, *parameters = match["head"].split(";")
    encoded = any(parameter.strip().lower() == "base64" for parameter in parameters[-1:])
    start = match.end()
    escaped = text.find("%", start) >= 0
    if (len(text) - start) // (4 if encoded else 3 if escaped else 1) * (3 if encoded else 1) > limit:
        raise _too_long(limit)
    with ExitStack() as stack:
        file = stack.enter_context(tempfile.SpooledTemporaryFile(_IN_MEMORY))
        try:
            for piece in _from_base64(unescaped(text, start)) if encoded else unescaped(text, start):
                file.write(piece)
        except ValueError:  # a UnicodeEncodeError of non-ASCII text is a ValueError, too
            raise InputError(
                f"the data URL is not of {'base64' if encoded else 'ASCII'} letters alone; encode the file's bytes as"
                " base64.b64encode does"
            ) from None
        size = file.tell()
        if size > limit:
            raise _too_long(limit)
        attributes = dict(parameter.partition("=")[::2] for parameter in parameters)
        stack.pop_all()
    return cast("BinaryIO", file), unquote(attributes.get("name", "")) or f"<data URL of {size} bytes>"


def _from_base64(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Decode base64 that arrives in chunks. Line breaks, missing padding and URL-safe base64 are accepted."""
    left = b""
    for piece in pieces:
        text = left + piece.translate(_LETTERS, b" \t\r\n\f")
        whole = len(text) // 4 * 4
        yield b64decode(text[:whole], validate=True)
        left = text[whole:]
    yield b64decode(left + b"=" * (-len(left) % 4), validate=True)


def _too_long(limit: int) -> InputError:
    return InputError(
        f"a data URL holds more than {limit} bytes, the most that this server takes; send a smaller file, or ask for a"
        f" larger {flag('max_upload')}"
    )
