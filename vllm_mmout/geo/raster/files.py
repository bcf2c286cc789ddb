"""Files: read by several threads, found beside another by their names."""

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
"""What any file raises that is asked for impossible places, as damaged data may do."""

THREADS = min(8, os.cpu_count() or 1)
"""Threads that read and decode, for a file at hand. On 16 cores four read 91 Mpx/s, eight 143, sixteen 123."""


class ManyReadersFile(io.RawIOBase):
    """A file that any number of threads may read at once, each at its own place."""

    def read_at(self, at: int, count: int) -> bytes:
        """Read bytes at a place, fewer where the file ends."""
        raise NotImplementedError

    def view_at(self, at: int, count: int) -> memoryview:
        """The same, without a copy where the file has them in memory already."""
        return memoryview(self.read_at(at, count))

    def fetch(self, at: int, count: int) -> None:
        """Have bytes fetched that will be read soon; returns at once."""


class SharedFile:
    """A seekable file, open for reading bytes; also a file object, for those who read it alone.

    Where the file is ours, reading raises `InputError`. A caller's own file object may raise what it likes; that stands
    in ``failure`` too: decoders that read the file wrap it, or pass over it. Places and numbers of bytes that are no
    whole numbers, as damaged data may have them, are a TypeError of whoever asks, and no failure of the file. A
    caller's file is left at its end, as after ``read()``.
    """

    def __init__(self, file: BinaryIO, name: str, *, owned: bool) -> None:
        self.name = name
        self.failure: Exception | None = None
        self._file = file
        self._owned = owned
        self._lock = threading.Lock()
        self._many = file if isinstance(file, ManyReadersFile) else None
        try:
            self.size = self.seek(0, 2)
            self.seek(0)
        except BaseException:
            self.close()
            raise

    @property
    def far(self) -> bool:
        """Whether it is worth it to have bytes fetched before they are read."""
        return self._many is not None

    def fetch(self, at: int, count: int) -> None:
        """Have bytes of a file that is far away fetched, which will be read soon; returns at once."""
        if self._many is not None:
            self._many.fetch(at, count)

    def read_at(self, at: int, count: int) -> bytes:
        """Read bytes at a place; fewer where the file ends."""
        at, count = operator.index(at), operator.index(count)
        if self._many is not None:
            with self._watched():
                return self._many.read_at(at, count)
        with self._lock:
            self.seek(at)
            return self.read(count)

    def view_at(self, at: int, count: int) -> memoryview:
        """The same, without a copy where a file that is far away has them here already."""
        if self._many is None:
            return memoryview(self.read_at(at, count))
        with self._watched():
            return self._many.view_at(operator.index(at), operator.index(count))

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place."""
        offset = operator.index(offset)
        with self._watched():
            return self._file.seek(offset, whence)

    def read(self, count: int = -1) -> bytes:
        """Read on from where the file is; fewer bytes where it ends."""
        count = operator.index(count)
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


PAM, MASK = ".aux.xml", ".msk"
"""What GDAL appends to a file's name for what it keeps of the file, and for its mask."""
REMEDY = "correct it, or remove it to read the raster without"
"""What to do with a file beside a raster that is wrong; ends the message."""
Opener: TypeAlias = Callable[[str], SharedFile | None]
"""Opens a file of the folder by its name; None where there is none."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The files beside a file that a user named by its path. Uploads and files on servers have none."""

    name: str
    """Of the file, without its folder."""
    opener: Opener

    def appended(self, suffix: str) -> SharedFile | None:
        """The file whose name is this one's with something behind it, in small letters or in capitals."""
        return self._first([self.name + suffix, self.name + suffix.upper()])

    def replaced(self, suffixes: Iterable[str]) -> SharedFile | None:
        """The first file whose name is this one's with another suffix, in small letters or in capitals."""
        stem = self.name.rpartition(".")[0] or self.name
        return self._first(stem + each for suffix in suffixes for each in (suffix.lower(), suffix.upper()))

    def _first(self, names: Iterable[str]) -> SharedFile | None:
        return next((file for name in names if (file := self.opener(name)) is not None), None)


class FileWithNeighbours:
    """A file object whose neighbours may be read too."""

    neighbours: Neighbours | None = None


def neighbours_of(path: Path) -> Neighbours:
    """The files in the folder of a local file."""
    return Neighbours(path.name, partial(_beside, path))


def _beside(path: Path, name: str) -> SharedFile | None:
    place = path.with_name(name)
    try:
        if not os.path.isfile(place):  # noqa: PTH113 - that of a Path raises where a name is too long for a file
            return None  # nor is a pipe one, which would be waited for
        return SharedFile(cast("BinaryIO", place.open("rb")), str(place), owned=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"cannot open {str(place)!r}, which belongs to {path.name}: {error}") from error
