"""PartFile: a download that is not whole yet, and can go on in a later process."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec

from vllm_mmout.errors import SaveError


class _Record(msgspec.Struct):
    """What the bytes of the file belong to."""

    source: str
    etag: str


class PartFile:
    """``NAME.part`` beside the file that it becomes, with ``NAME.part.json``, which says what its bytes are of.

    Args:
        target: the file that it becomes.
        source: what is downloaded; bytes of anything else that lie there are thrown away.

    Raises:
        SaveError: it cannot be opened, or another process is writing it.

    """

    def __init__(self, target: Path, source: str) -> None:
        self.path = target.with_name(f"{target.name}.part")
        self._record = target.with_name(f"{target.name}.part.json")
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
        """Throw away what is there; what is written from now on has this ETag.

        Args:
            etag: None, or a weak one: what is written cannot be gone on with.

        """
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
