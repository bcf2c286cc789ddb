"""Download results with HTTP range requests, so that interrupted downloads resume (RFC 9110, 13.1.5 and 14)."""

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
from vllm_mmout.retries import BrokenError, call_with_retries
from vllm_mmout.wings.jobs.client.jobs import ROUTE, JobOutput
from vllm_mmout.wings.jobs.client.session import ServerError, Session, TemporaryError

_PIECE = 256 << 10
"""Maximum number of bytes that are read and written at once."""
_NO_SUCH_PART = frozenset({int(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)})


def result_path(job: str, output: JobOutput) -> str:
    """Return the URL path of a result, relative to the server's base URL."""
    query = {"processor": output.processor} | ({} if output.day is None else {"day": output.day})
    return f"{ROUTE}/{job}/content?{urlencode(query)}"


def download(session: Session, path: str, size: int, part: PartFile, show: Callable[[int], None]) -> None:
    """Download the missing bytes of a result into ``part``. After a broken connection, resume the download.

    Args:
        session: the connection to the server.
        path: the URL path of the result.
        size: size of the whole result in bytes.
        part: the file to complete.
        show: called with the number of bytes that ``part`` has.

    Raises:
        ServerError: the download failed too often, or the result has another size.

    """
    waiting = session.new_waiting()
    most = 0

    def wait(error: BrokenError) -> None:
        nonlocal most
        if part.size > most:  # a server without range requests would otherwise be retried forever
            most = part.size
            waiting.retries.failures = 0
        waiting.wait(error)

    call_with_retries(lambda: _download_once(session, path, size, part, show), wait)
    if part.size != size:
        part.begin(None)
        raise ServerError(f"the server sent another result than the {size} bytes that it announced; try again")
    part.finish()


def _download_once(session: Session, path: str, size: int, part: PartFile, show: Callable[[int], None]) -> None:
    """Send one request for the missing bytes of a result, and append them to ``part``."""
    # A complete file requests its last byte again, so that the server checks whether the ETag is still valid.
    start = 0 if part.etag is None else min(part.size, max(size - 1, 0))
    headers = {"Range": f"bytes={start}-", "If-Range": part.etag} if start and part.etag else {}
    with session.answer("GET", path, headers=headers, takes=_NO_SUCH_PART) as response:
        if response.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.begin(None)
            raise TemporaryError("the server does not have this part of the result; the download starts again")
        if response.status == HTTPStatus.PARTIAL_CONTENT:
            content_range = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
            if content_range is None or int(content_range[1]) != start:
                part.begin(None)
                raise TemporaryError("the server sent another part of the result than was requested")
            part.cut(start)
        else:
            part.begin(response.headers.get("ETag"))
        show(part.size)
        for piece in response.stream(_PIECE):
            part.write(piece)
            show(part.size)


class _PartialDownload(msgspec.Struct):
    """Record of the result's URL and ETag, stored beside a partial download so that it can be resumed."""

    source: str
    etag: str


class PartFile:
    """Partial download in the file ``NAME.part``, beside the final file NAME. Other processes cannot write to it.

    ``NAME.part.json`` records the source of its bytes. Bytes that came from another source are discarded.
    """

    def __init__(self, target: Path, source: str) -> None:
        self.path = target.with_name(f"{target.name}.part")
        self._record = self.path.with_name(f"{self.path.name}.json")
        self._source = source
        self.etag: str | None = None
        """ETag of the result whose bytes are in the file, or None if the download cannot be resumed."""
        try:
            self._file = os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b")
        except OSError as error:
            raise SaveError(f"cannot write {self.path}: {error.strerror}") from error
        if not self._lock():
            self._file.close()
            raise SaveError(f"another process is writing {self.path}; wait for it, or choose another -o")
        self.size = self._file.seek(0, os.SEEK_END)
        """Size of the file in bytes."""
        with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
            record = msgspec.json.decode(self._record.read_bytes(), type=_PartialDownload)
            self.etag = record.etag if record.source == source else None

    def begin(self, etag: str | None) -> None:
        """Empty the file to begin a new download, and record ``etag`` so that the download can be resumed.

        Only a download with a strong ETag can be resumed. A weak ETag is not recorded.
        """
        with self._errors():
            self._record.unlink(missing_ok=True)
            self.cut(0)
            self.etag = None if etag is None or etag.startswith("W/") else etag
            if self.etag is not None:
                self._record.write_bytes(msgspec.json.encode(_PartialDownload(self._source, self.etag)))

    def cut(self, size: int) -> None:
        """Truncate the file to ``size`` bytes."""
        with self._errors():
            self._file.seek(size)
            self._file.truncate()
            self.size = size

    def write(self, data: bytes) -> None:
        """Append bytes to the file."""
        with self._errors():
            self._file.write(data)
            self.size += len(data)

    def finish(self) -> None:
        """Flush the downloaded file to disk. The result can then be deleted on the server without losing data."""
        with self._errors():
            self._file.flush()
            os.fsync(self._file.fileno())

    def forget(self) -> None:
        """Remove the file ``NAME.part.json``, which is needed only to resume an unfinished download."""
        self._record.unlink(missing_ok=True)

    def _lock(self) -> bool:
        """Lock the file without waiting. Return False if another process has locked, moved or deleted the file."""
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
                f"cannot write {self.path}: {error.strerror or error}; make room, then continue with --resume"
            ) from error
