"""Read files from several threads, and find the files beside a raster (sidecars, masks)."""

from __future__ import annotations

import contextlib
import io
import operator
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeAlias, cast

from vllm_mmout.errors import InputError

_NO_SUCH_PLACE = (ArithmeticError, MemoryError, ValueError)
"""Exceptions that reading at an impossible offset raises. A damaged file may contain such offsets."""

_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
THREADS = min(16, max(_CORES - 2, min(8, _CORES)))
"""Number of threads that read and decode a local file. On a machine with ten or more CPU cores, at least two cores stay
free for the engine.

On a machine with 16 cores, 4 threads read 83 million pixels per second, and 16 threads read 242 million.
"""
READ_AHEAD_BYTES = 2**23 * THREADS
"""Largest total size in bytes of the pixels that are decoded before a caller requests them. The limit is for all open
images together."""


class ManyReadersFile(io.RawIOBase):
    """Base class of files that any number of threads may read at the same time, each at its own offset."""

    closes_with_raster = False
    """Whether closing a raster that was opened from this file also closes the file."""

    def read_at(self, at: int, count: int) -> bytes:
        """Read ``count`` bytes at offset ``at``, fewer at the end of the file."""
        raise NotImplementedError

    def view_at(self, at: int, count: int) -> memoryview:
        """Return ``count`` bytes at offset ``at`` as a view, without a copy if they are already in memory."""
        return memoryview(self.read_at(at, count))

    def fetch(self, at: int, count: int) -> None:
        """Start to fetch ``count`` bytes at offset ``at`` that will be read soon, without waiting for them."""


class SharedFile:
    """Binary file that several threads may read at any offset, and that a single thread may use as a file object.

    If ``owned``, read errors become `InputError`. A caller's file object may raise any exception; the exception is
    kept in ``failure`` too, since decoders may wrap or swallow it. An offset or count that is not an integer, as
    damaged data may contain, raises TypeError and does not count as a failure of the file. A caller's file is left at
    its end, as after ``read()``.
    """

    def __init__(self, file: BinaryIO, name: str, *, owned: bool) -> None:
        self.name = name
        self.failure: Exception | None = None
        self._file = file
        self._owned = owned
        self._lock = threading.Lock()
        self._many = file if isinstance(file, ManyReadersFile) else None
        self._descriptor = owned and isinstance(file, io.BufferedReader) and isinstance(file.raw, io.FileIO)
        """Whether several threads can read the file at once through its file descriptor."""
        try:
            self.size = self.seek(0, 2)
            self.seek(0)
        except BaseException:
            self.close()
            raise

    @property
    def is_remote(self) -> bool:
        """Whether reads go over a network, so that fetching bytes ahead pays off."""
        return self._many is not None

    def fetch(self, at: int, count: int) -> None:
        """Start to fetch bytes that will be read soon, without waiting for them. Does nothing for local files."""
        if self._many is not None:
            self._many.fetch(at, count)

    def read_at(self, at: int, count: int) -> bytes:
        """Read ``count`` bytes at offset ``at``, fewer at the end of the file."""
        at, count = operator.index(at), operator.index(count)
        if self._many is not None:
            with self._watched():
                return self._many.read_at(at, count)
        with self._lock:
            self.seek(at)
            return self.read(count)

    def view_at(self, at: int, buffer: memoryview) -> memoryview:
        """Return a view of ``len(buffer)`` bytes at offset ``at``, or of fewer bytes at the end of the file.

        Only an owned local file is read into ``buffer``. The bytes of a remote file are a view of its cache.
        """
        if self._many is not None:
            with self._watched():
                return self._many.view_at(operator.index(at), len(buffer))
        if not self._descriptor:
            return memoryview(self.read_at(at, len(buffer)))
        count = 0
        with self._watched():
            while count < len(buffer) and (more := os.preadv(self._file.fileno(), [buffer[count:]], at + count)):
                count += more
            self._file.fileno()  # raises if the file was closed meanwhile: the bytes may belong to another file
        return buffer[:count]

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to an offset, as ``io.IOBase.seek`` does, and return it."""
        offset = operator.index(offset)
        with self._watched():
            return self._file.seek(offset, whence)

    def read(self, count: int = -1) -> bytes:
        """Read ``count`` bytes, fewer at the end of the file, or all remaining bytes if ``count`` is negative."""
        count = operator.index(count)
        with self._watched():
            data = self._file.read(count)
            while len(data) < count and (more := self._file.read(count - len(data))):  # short reads
                data += more
            return data

    def tell(self) -> int:
        """Return the current position."""
        with self._watched():
            return self._file.tell()

    def close(self) -> None:
        """Close the file, unless it belongs to the caller. May be called repeatedly.

        A caller's file stays open, and is left at its end.
        """
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


_HEADER_READS = 20_000
"""Largest number of reads for the header of a file. A TIFF file with a thousand images needs about 10 000 reads."""


class HeaderFile:
    """File object that raises InputError if more bytes are read than the header of any image needs."""

    def __init__(self, file: BinaryIO, name: str, limit: int) -> None:
        self._file = file
        self._name = name
        self._limit = limit
        self._reads, self._bytes = _HEADER_READS, limit
        self.seek, self.tell = file.seek, file.tell

    def read(self, count: int = -1) -> bytes:
        """Read the next ``count`` bytes, fewer at the end of the file."""
        self._reads -= 1
        requested = self._bytes + 1 if count < 0 else count
        data = self._file.read(min(requested, self._bytes + 1))
        self._bytes -= len(data)
        if self._bytes < 0 or self._reads < 0:
            raise InputError(
                f"{self._name} has a header of more than {self._limit >> 20} MiB or {_HEADER_READS} parts, more than"
                " any image needs; rewrite the file, for example with gdal_translate"
            )
        return data


PAM, MASK = ".aux.xml", ".msk"
"""Suffixes that GDAL appends to a file's name for its PAM (metadata) file and its mask."""
REMEDY = "correct the file, or remove it to read the raster without it"
"""Advice at the end of error messages about an invalid sidecar file."""
Opener: TypeAlias = Callable[[str], SharedFile | None]
"""Function that opens a file in a raster's folder by its name, and returns None if the file is missing."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Access to the files beside a local file, such as its sidecar files and its mask.

    An upload or a remote file does not have neighbours.
    """

    name: str
    """Name, without folder, of the file whose sidecar files are searched."""
    opener: Opener
    """Function that opens another file in this file's folder by name, and returns None if that file is missing."""

    def appended(self, suffix: str) -> SharedFile | None:
        """Open the file whose name is this file's name with ``suffix`` appended, or return None if it is missing."""
        return self._first([self.name + suffix, self.name + suffix.upper()])

    def replaced(self, suffixes: Iterable[str]) -> SharedFile | None:
        """Open the file whose name is this file's name with its suffix replaced, or return None if no such file exists.

        ``suffixes`` are tried in turn, each in lower case, then in capitals.
        """
        stem = self.name.rpartition(".")[0] or self.name
        return self._first(stem + each for suffix in suffixes for each in (suffix.lower(), suffix.upper()))

    def _first(self, names: Iterable[str]) -> SharedFile | None:
        return next((file for name in names if (file := self.opener(name)) is not None), None)


class FileWithNeighbours:
    """Base class of file objects that also give access to the files beside them, such as sidecar files."""

    neighbours: Neighbours | None = None
    """Access to the files beside this file, such as sidecar files, or None if they may not be read."""
    closes_with_raster = False
    """Whether closing a raster that was opened from this file also closes the file."""


def neighbours_of(path: Path) -> Neighbours:
    """Return an object that opens sidecar files and other neighbours of a local file when they are needed."""
    return Neighbours(path.name, partial(_beside, path))


def _beside(path: Path, name: str) -> SharedFile | None:
    place = path.with_name(name)
    try:
        if not os.path.isfile(place):  # noqa: PTH113 - Path.is_file raises if a name is too long for a file
            return None  # missing, or a pipe, which would block
        return SharedFile(cast("BinaryIO", place.open("rb")), str(place), owned=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"cannot open {str(place)!r}, which belongs to {path.name}: {error}") from error
