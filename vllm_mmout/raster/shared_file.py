"""A file that several threads read, each at its own place."""

from __future__ import annotations

import contextlib
import io
import os
import threading
from typing import TYPE_CHECKING, BinaryIO

from vllm_mmout.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

_NO_SUCH_PLACE = (ArithmeticError, MemoryError, ValueError)
"""What any file raises that is asked for impossible places, as damaged data may do."""

THREADS = min(4, os.cpu_count() or 1)
"""Threads that read and decode, for a file at hand."""
_THREADS_THAT_WAIT = 8
"""Threads for a file that several read at once: they wait for a server rather than compute."""


class ManyReadersFile(io.RawIOBase):
    """A file that any number of threads may read at once, each at its own place."""

    def read_at(self, at: int, count: int) -> bytes:
        """Read bytes at a place, fewer where the file ends."""
        raise NotImplementedError


class SharedFile:
    """A seekable file, open for reading bytes; also a file object, for those who read it alone.

    Where the file is ours, reading raises `InputError`. A caller's own file object may raise what it likes; that stands
    in ``failure`` too: decoders that read the file wrap it, or pass over it.

    Args:
        file: the file.
        name: what to call it in an error.
        owned: whether it is ours to close. A caller's file is left at its end, as after ``read()``.

    """

    def __init__(self, file: BinaryIO, name: str, *, owned: bool) -> None:
        self.name = name
        self.failure: Exception | None = None
        self._file = file
        self._owned = owned
        self._lock = threading.Lock()
        self._read_at = file.read_at if isinstance(file, ManyReadersFile) else None
        try:
            self.size = self.seek(0, 2)
            self.seek(0)
        except BaseException:
            self.close()
            raise

    @property
    def threads(self) -> int:
        """How many threads are worth it to read and decode parts of the file."""
        return THREADS if self._read_at is None else _THREADS_THAT_WAIT

    def read_at(self, at: int, count: int) -> bytes:
        """Read bytes at a place; fewer where the file ends."""
        if self._read_at is not None:
            with self._watched():
                return self._read_at(at, count)
        with self._lock:
            self.seek(at)
            return self.read(count)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place."""
        with self._watched():
            return self._file.seek(offset, whence)

    def read(self, count: int = -1) -> bytes:
        """Read on from where the file is; fewer bytes where it ends."""
        with self._watched():
            data = self._file.read(count)
            while len(data) < count and (more := self._file.read(count - len(data))):  # as unbuffered files want it
                data += more
            return data

    def tell(self) -> int:
        """Where the file is."""
        with self._watched():
            return self._file.tell()

    def close(self) -> None:
        """Let the file go; any number of times."""
        with self._lock:
            if self._owned:
                self._file.close()
            else:
                with contextlib.suppress(OSError, ValueError):  # the caller may have closed it
                    self._file.seek(0, 2)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except _NO_SUCH_PLACE:
            if self._owned and self._file.closed:
                raise InputError(f"{self.name} is closed; open it again to read it") from None
            raise
        except Exception as error:
            if self._owned and isinstance(error, OSError):
                raise InputError(f"cannot read {self.name}: {error}") from error
            self.failure = error
            raise
