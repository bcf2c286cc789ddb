"""Files: written whole or not at all, read by several threads, found beside another by their names."""

from __future__ import annotations

import contextlib
import io
import operator
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeAlias, cast

from vllm_mmout.errors import InputError, SaveError


@contextlib.contextmanager
def atomic_file(target: str | Path, sidecars: Mapping[str, bytes | None] | None = None) -> Iterator[Path]:
    """Give a temporary name beside ``target``; what was written there is renamed to ``target`` at the end.

    With it come small files, ``sidecars``: suffix behind its name -> content; None: there shall be none. After an error
    the temporary file is gone, and files that were under the names before are still there.
    """
    path = Path(target)
    if path.is_dir():
        raise SaveError(f"cannot write {path}: it is a folder; add a file name")
    if not path.parent.is_dir():
        raise SaveError(f"cannot write {path}: there is no folder {path.parent}; make it first")
    beside = {path.with_name(path.name + suffix): content for suffix, content in (sidecars or {}).items()}
    part = _hidden(path, "part")
    parts = {path: part}
    try:
        yield part
        for name, content in beside.items():
            if content is not None:
                parts[name] = _hidden(name, "part")
                parts[name].write_bytes(content)
        _exchange(parts, [name for name in beside if os.path.lexists(name) and not name.is_dir()])
    except OSError as error:
        raise SaveError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        for left in parts.values():
            with contextlib.suppress(OSError):
                left.unlink(missing_ok=True)


def _exchange(parts: Mapping[Path, Path], old: list[Path]) -> None:
    """Give new files their names, the first one's first, and take old ones away: all of it, or nothing."""
    away: dict[Path, Path] = {}
    placed: list[Path] = []
    try:
        for name in old:
            hidden = _hidden(name, "old")
            with contextlib.suppress(FileNotFoundError):  # somebody else saves under the same name
                os.replace(name, hidden)  # noqa: PTH105 - Path.replace is the same call, this name says what matters
                away[name] = hidden
        for name, part in parts.items():
            if len(parts) > 1 and name not in away and os.path.lexists(name) and not name.is_dir():
                with contextlib.suppress(FileNotFoundError):  # kept, as what follows could fail
                    away[name] = _kept(name)
            os.replace(part, name)  # noqa: PTH105 - as above
            placed.append(name)
    except BaseException:
        for name in placed:
            if name not in away:
                name.unlink(missing_ok=True)
        for name, hidden in away.items():
            os.replace(hidden, name)  # noqa: PTH105 - as above
            hidden.unlink(missing_ok=True)  # two names of one file stay two
        raise
    for hidden in away.values():
        with contextlib.suppress(OSError):
            hidden.unlink()


def _kept(name: Path) -> Path:
    """A second name for a file, which keeps the first until another takes it; without links it is the only one."""
    hidden = _hidden(name, "old")
    try:
        os.link(name, hidden, follow_symlinks=False)
    except OSError:
        os.replace(name, hidden)  # noqa: PTH105 - as above
    return hidden


def _hidden(name: Path, kind: str) -> Path:
    return name.with_name(f".{name.name}.{secrets.token_hex(4)}.{kind}")


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
        at, count = operator.index(at), operator.index(count)
        if self._read_at is not None:
            with self._watched():
                return self._read_at(at, count)
        with self._lock:
            self.seek(at)
            return self.read(count)

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
