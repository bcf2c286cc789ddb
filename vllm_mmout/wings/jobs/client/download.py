"""Downloading a result: by ranges from where it stopped, now or in a later process (RFC 9110, 13.1.5 and 14)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Self
from urllib.parse import urlencode

import msgspec

from vllm_mmout.errors import SaveError
from vllm_mmout.wings.jobs.client.jobs import ROUTE, Output
from vllm_mmout.wings.jobs.client.session import ServerError, Session, TemporaryError

_PIECE = 256 << 10
_NO_SUCH_PART = frozenset({int(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)})


def result_path(job: str, output: Output) -> str:
    """Where a result lies below the server's address."""
    return f"{ROUTE}/{job}/content?{urlencode({'processor': output.processor})}"


def download(session: Session, path: str, size: int, part: PartFile, show: Callable[[int], None]) -> None:
    """Download what ``part`` lacks of ``size`` bytes; what broke off goes on where it stopped."""
    retries = session.retries()
    most = 0
    while True:
        try:
            _continue(session, path, size, part, show)
        except TemporaryError as error:
            if part.size > most:  # a server without ranges could else be asked for ever
                most = part.size
                retries.failures = 0
            retries.wait(error)
        else:
            break
    if part.size != size:
        part.begin(None)
        raise ServerError(f"the server sent another result than the {size} bytes that it spoke of; try again")
    part.finish()


def _continue(session: Session, path: str, size: int, part: PartFile, show: Callable[[int], None]) -> None:
    """Ask once for what is missing, and write what comes."""
    # A whole file asks for its last byte again: whether it is still that of the server is then answered by the server.
    start = 0 if part.etag is None else min(part.size, max(size - 1, 0))
    headers = {"Range": f"bytes={start}-", "If-Range": part.etag} if start and part.etag else {}
    with session.answer("GET", path, headers=headers, takes=_NO_SUCH_PART) as response:
        if response.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.begin(None)
            raise TemporaryError("the server has no such part of the result, which is fetched anew")
        if response.status == HTTPStatus.PARTIAL_CONTENT:
            found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
            if found is None or int(found[1]) != start:
                part.begin(None)
                raise TemporaryError("the server sent another part of the result than it was asked for")
            part.cut(start)
        else:
            part.begin(response.headers.get("ETag"))
        show(part.size)
        for piece in response.stream(_PIECE):
            part.write(piece)
            show(part.size)


class _Record(msgspec.Struct):
    """What the bytes of the file belong to."""

    source: str
    etag: str


class PartFile:
    """``NAME.part`` beside the file that it becomes, with ``NAME.part.json``, which says what its bytes are of.

    Bytes of another source that lie there are thrown away.
    """

    def __init__(self, target: Path, source: str) -> None:
        self.path = target.with_name(f"{target.name}.part")
        self._record = self.path.with_name(f"{self.path.name}.json")
        self._source = source
        self.etag: str | None = None
        """Of the bytes that are there; None: they are of no use."""
        try:
            self._file = os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b")
        except OSError as error:
            raise SaveError(f"cannot write {self.path}: {error.strerror}") from error
        if not self._is_ours():
            self._file.close()
            raise SaveError(f"another process is writing {self.path}; wait for it, or choose another -o")
        self.size = self._file.seek(0, os.SEEK_END)
        """Bytes that are there."""
        with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
            found = msgspec.json.decode(self._record.read_bytes(), type=_Record)
            self.etag = found.etag if found.source == source else None

    def begin(self, etag: str | None) -> None:
        """Throw away what is there; what is written from now on has this ETag, and cannot be resumed without one."""
        with self._errors():
            self._record.unlink(missing_ok=True)
            self.cut(0)
            self.etag = None if etag is None or etag.startswith("W/") else etag
            if self.etag is not None:
                self._record.write_bytes(msgspec.json.encode(_Record(self._source, self.etag)))

    def cut(self, size: int) -> None:
        """Leave so many bytes."""
        with self._errors():
            self._file.seek(size)
            self._file.truncate()
            self.size = size

    def write(self, data: bytes) -> None:
        """Append."""
        with self._errors():
            self._file.write(data)
            self.size += len(data)

    def finish(self) -> None:
        """Have it on the disk: the server is about to forget what it sent."""
        with self._errors():
            self._file.flush()
            os.fsync(self._file.fileno())

    def forget(self) -> None:
        """Remove the record: the file has its own name now."""
        self._record.unlink(missing_ok=True)

    def _is_ours(self) -> bool:
        """Lock the file, and see that it has not got its own name meanwhile."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except OSError:
            return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._errors():
            self._file.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SaveError(
                f"cannot write {self.path}: {error.strerror or error}; make room, and go on with --resume"
            ) from error
