"""Form: a form with files as ``multipart/form-data`` (RFC 7578), read from the disk while it is sent."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from vllm_mmout.errors import InputError

_PIECE = 256 << 10
"""Bytes that are in memory at once."""


class Form:
    """Fields and files, which are one body as often as it is sent."""

    def __init__(self, fields: Sequence[tuple[str, str]], files: Sequence[tuple[str, Path]] = ()) -> None:
        boundary = secrets.token_hex(16)
        self.content_type = f"multipart/form-data; boundary={boundary}"
        self._parts: list[tuple[bytes, Path | None, int]] = []
        """What comes before each file, the file, and its bytes."""
        self._end = f"--{boundary}--\r\n".encode()
        start = f"--{boundary}\r\nContent-Disposition: form-data; name=".encode()
        for name, text in fields:
            self._parts.append((start + b"%s\r\n\r\n%s\r\n" % (_quoted(name), _plain(text)), None, 0))
        for name, path in files:
            head = b"%s; filename=%s\r\nContent-Type: application/octet-stream\r\n\r\n"
            self._parts.append((start + head % (_quoted(name), _quoted(path.name)), path, _size(path)))
        self.size = sum(len(head) + size + 2 * (path is not None) for head, path, size in self._parts) + len(self._end)
        """Bytes of the body."""

    def body(self, sent: Callable[[int], None]) -> Iterator[bytes]:
        """The body in pieces; ``sent`` is told how many bytes were taken so far."""
        total = 0
        for head, path, size in (*self._parts, (self._end, None, 0)):
            for piece in (head,) if path is None else chain((head,), _read(path, size), (b"\r\n",)):
                yield piece
                total += len(piece)
                sent(total)


def _read(path: Path, size: int) -> Iterator[bytes]:
    """So many bytes of a file; an error of the disk must not look like one of the connection."""
    try:
        with path.open("rb", buffering=0) as file:
            while size:
                piece = file.read(min(size, _PIECE))
                if not piece:
                    raise InputError(f"{path} has become {size} bytes shorter while it was sent; send it again")
                size -= len(piece)
                yield piece
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def _size(path: Path) -> int:
    try:
        found = path.stat()
    except FileNotFoundError:
        raise InputError(f"no such file: {path} (looked from {Path.cwd()})") from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from error
    if stat.S_ISDIR(found.st_mode):
        raise InputError(f"{path} is a folder; name its files, a file a band, in the model's order")
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path} is no regular file; save it as one first")
    if not found.st_size:
        raise InputError(f"{path} is empty; send an image")
    if not os.access(path, os.R_OK):
        raise InputError(f"cannot read {path}: Permission denied")
    return found.st_size


def _quoted(name: str) -> bytes:
    r"""A name as it stands in a header: a quote becomes ``\"``, and what would end the line a space."""
    shown = "".join(letter if letter.isprintable() else " " for letter in name)
    return b'"%s"' % _plain(shown.replace("\\", "\\\\").replace('"', '\\"'))


def _plain(text: str) -> bytes:
    """Text in UTF-8; a name of a file may hold bytes that are none."""
    return text.encode(errors="replace")
