"""Build ``multipart/form-data`` bodies (RFC 7578) that read their files from disk while they are sent."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from vllm_mmout.errors import InputError

_PIECE = 256 << 10
"""Maximum number of bytes of a file that are in memory at once."""


class MultipartForm:
    """Request body with text fields and files. It can be sent several times, for retries."""

    def __init__(self, fields: Sequence[tuple[str, str]], files: Sequence[tuple[str, Path]] = ()) -> None:
        boundary = secrets.token_hex(16)
        self.content_type = f"multipart/form-data; boundary={boundary}"
        self._parts: list[tuple[bytes, Path | None, int]] = []
        """Parts of the body, each with its header, the path of its file or None, and the file's size in bytes."""
        self._end = f"--{boundary}--\r\n".encode()
        start = f"--{boundary}\r\nContent-Disposition: form-data; name=".encode()
        for name, text in fields:
            self._parts.append((start + b"%s\r\n\r\n%s\r\n" % (_quoted(name), _plain(text)), None, 0))
        for name, path in files:
            head = b"%s; filename=%s\r\nContent-Type: application/octet-stream\r\n\r\n"
            self._parts.append((start + head % (_quoted(name), _quoted(path.name)), path, _size(path)))
        self.size = sum(len(head) + size + 2 * (path is not None) for head, path, size in self._parts) + len(self._end)
        """Size of the body in bytes."""

    def body(self, sent: Callable[[int], None]) -> Iterator[bytes]:
        """Yield the request body in chunks. After each chunk, call ``sent`` with the total number of bytes so far."""
        total = 0
        for head, path, size in (*self._parts, (self._end, None, 0)):
            for piece in (head,) if path is None else chain((head,), _read(path, size), (b"\r\n",)):
                yield piece
                total += len(piece)
                sent(total)


def _read(path: Path, size: int) -> Iterator[bytes]:
    """Yield ``size`` bytes of a file in chunks. Raise InputError if the file cannot be read, or is too short.

    An OSError would look like a connection error, because the file is read while the request is sent.
    """
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
        status = path.stat()
    except FileNotFoundError:
        raise InputError(f"no such file: {path} (looked from {Path.cwd()})") from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from error
    if stat.S_ISDIR(status.st_mode):
        raise InputError(f"{path} is a folder; name its files, one file per band, in the model's order")
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path} is not a regular file; save its content as a file first")
    if not status.st_size:
        raise InputError(f"{path} is empty; send an image")
    if not os.access(path, os.R_OK):
        raise InputError(f"cannot read {path}: Permission denied")
    return status.st_size


def _quoted(name: str) -> bytes:
    r"""Return a name quoted for a header: ``"`` becomes ``\"``, and unprintable characters become spaces."""
    printable = "".join(letter if letter.isprintable() else " " for letter in name)
    return b'"%s"' % _plain(printable.replace("\\", "\\\\").replace('"', '\\"'))


def _plain(text: str) -> bytes:
    """Encode text as UTF-8 bytes. Characters that UTF-8 cannot encode become "?"."""
    return text.encode(errors="replace")
