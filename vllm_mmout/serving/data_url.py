"""Data URLs (RFC 2397): a text that holds a file."""

from __future__ import annotations

import re
import tempfile
from base64 import b64decode
from collections.abc import Iterator
from contextlib import ExitStack
from typing import BinaryIO, Final
from urllib.parse import unquote

from vllm_mmout.errors import InputError
from vllm_mmout.serving.escapes import unescaped
from vllm_mmout.serving.named_file import named
from vllm_mmout.serving.options import flag

_IN_MEMORY: Final = 2**23
_SAID: Final = re.compile(r"data:(?P<said>[^,]{0,1000}),", re.IGNORECASE)


def open_data_url(text: str, limit: int) -> BinaryIO:
    """The file that a data URL holds; blocks while it is decoded.

    Args:
        text: the URL.
        limit: bytes that the file may have.

    Raises:
        InputError: it holds none, or one of more bytes than the limit.

    """
    found = _SAID.match(text)
    if found is None:
        raise InputError("a data URL must be data:image/png;base64,..., got one without a comma")
    _, *parameters = found["said"].split(";")
    encoded = any(parameter.strip().lower() == "base64" for parameter in parameters[-1:])
    start = found.end()
    escaped = text.find("%", start) >= 0
    if (len(text) - start) // (4 if encoded else 3 if escaped else 1) * (3 if encoded else 1) > limit:
        raise _too_long(limit)
    with ExitStack() as stack:
        file = stack.enter_context(tempfile.SpooledTemporaryFile(_IN_MEMORY))
        try:
            for piece in _from_base64(unescaped(text, start)) if encoded else unescaped(text, start):
                file.write(piece)
        except ValueError:  # of what is no ASCII, too
            raise InputError(
                f"the data URL is not of {'base64' if encoded else 'ASCII'} letters alone; encode the file's bytes as"
                " base64.b64encode does, without line breaks"
            ) from None
        size = file.tell()
        if size > limit:
            raise _too_long(limit)
        said = dict(parameter.partition("=")[::2] for parameter in parameters)
        opened = named(file, unquote(said.get("name", "")) or f"<data URL of {size} bytes>")
        stack.pop_all()
    return opened


def _from_base64(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Decode base64 that is cut anywhere.

    Raises:
        ValueError: it is none.

    """
    left = b""
    for piece in pieces:
        text = left + piece
        whole = len(text) // 4 * 4
        yield b64decode(text[:whole], validate=True)
        left = text[whole:]
    if left:
        raise ValueError("the last group has no four letters")


def _too_long(limit: int) -> InputError:
    return InputError(
        f"a data URL holds more than {limit} bytes, the most that this server takes; send a smaller file, or ask for a"
        f" larger {flag('max_upload')}"
    )
