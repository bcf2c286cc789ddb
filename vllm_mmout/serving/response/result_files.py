"""Encoded: one result as the bytes of a file until it has been sent. ResultsFolder: where servers make such files."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import stat
import tempfile
import threading
import weakref
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from vllm_mmout.errors import OptionError
from vllm_mmout.outputs.formats import FORMATS, SENT

SUFFIXES = {name: form.suffixes[0] for name, form in FORMATS.items()}
"""Format -> suffix of a file name."""
MEDIA_TYPES = {name: form.media_type for name, form in SENT.items()}
"""Format of a result -> its media type."""
SOUND_TYPES = {name: form.media_type for name, form in FORMATS.items() if form.sound}
"""Format of a sound -> its media type."""

OTHER = ".bin"
"""Suffix of a format that is none of ours."""
UNKNOWN = "application/octet-stream"
"""Media type of a file of which no more is known."""

_FLAG = "--mmout-results-dir"
_LOCK = ".lock"
_SERVER = re.compile(r"\.server-([0-9a-f]{32})", re.ASCII)
_COPIED = 1 << 20
"""Bytes that are copied at once."""


class Encoded:
    """One result as the bytes of a file.

    They come as such, as a file in a folder made by `own_folder`, which goes with it, or as an unbuffered open file.
    A file on disk is removed by `close`, when the object is collected, or when the process ends normally. Threads may
    read and close one at the same time. The size is (width, height) in pixels; the background "transparent" or
    "opaque" for a picture, None for anything else.
    """

    def __init__(
        self,
        content: bytes | Path | BinaryIO,
        format: str,  # noqa: A002 - the word of OpenAI's interface
        *,
        media_type: str | None = None,
        size: tuple[int, int] | None = None,
        background: str | None = None,
    ) -> None:
        self.format = format
        self.media_type = media_type or MEDIA_TYPES.get(format) or SOUND_TYPES.get(format, UNKNOWN)
        self.size = None if size is None else f"{size[0]}x{size[1]}"
        self.background = background
        self._lock = threading.Lock()
        self._start = 0
        self._content: bytes | Path | None = content if isinstance(content, bytes | Path) else b""
        self._file = None if isinstance(content, bytes | Path) else self._closing(content)
        self._remove = None
        if isinstance(content, bytes):
            self.nbytes = len(content)
        elif isinstance(content, Path):
            self._remove = weakref.finalize(self, remove_folder, content.parent, os.getpid())
            self.nbytes = content.stat().st_size
        else:
            self.nbytes = os.fstat(content.fileno()).st_size

    @property
    def suffix(self) -> str:
        """Of a name for the file."""
        return SUFFIXES.get(self.format, OTHER)

    def narrow(self, part: slice) -> None:
        """Have just these bytes be the result; before any of it is read."""
        self._start, self.nbytes = part.start, part.stop - part.start

    def read(self, at: int, count: int) -> bytes:
        """Some of the bytes; fewer at the end."""
        at, count = self._start + at, max(0, min(count, self.nbytes - at))
        with self._lock:
            content = self._content
            if content is None:
                raise ValueError("the result was closed or stored; read it before")
            if self._file is None:
                if isinstance(content, bytes):
                    return content[at : at + count]
                self._file = self._closing(content.open("rb", buffering=0))
            self._file.seek(at)
            data = self._file.read(count)
            while 0 < len(data) < count and (more := self._file.read(count - len(data))):  # a read may give less
                data += more
            return data

    def store(self, target: Path) -> None:
        """Make the bytes a new file, readable by this user alone; the result is closed then."""
        with self._lock:
            content = self._content
            if content is None:
                raise ValueError("the result was closed or stored already")
            if isinstance(content, bytes):
                with _new(target) as file:
                    file.write(content)
            else:
                _moved(content, target)
        self.close()

    def close(self) -> None:
        """Let the bytes go; any number of times."""
        with self._lock:
            self._content = None
            if self._file is not None:
                self._file.close()
                self._file = None
        if self._remove is not None:
            self._remove()

    def _closing(self, file: BinaryIO | FileIO) -> BinaryIO | FileIO:
        weakref.finalize(self, file.close)
        return file


def own_folder(parent: Path | None = None) -> Path:
    """Make a temporary folder that this user alone can look into, in another one or in the system's."""
    return Path(tempfile.mkdtemp(prefix="mmout-result-", dir=parent))


def _new(target: Path) -> BinaryIO:
    return os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _moved(file: Path, target: Path) -> None:
    """Move a file, or copy it where the target lies on another disk."""
    try:
        file.chmod(0o600)
        file.rename(target)
    except OSError:
        with file.open("rb") as source, _new(target) as copy:
            shutil.copyfileobj(source, copy, _COPIED)


def remove_folder(folder: Path, process: int) -> None:
    """Remove a folder, in the process that made it alone: a fork has the same objects."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


class ResultsFolder:
    """A folder for this user alone, in which each server has a folder of its own for what it is working on.

    A server that lives holds a lock on a file there, which ends with its process however that ends; whoever finds the
    lock free removes what the dead server has left. All methods block.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.server = secrets.token_hex(16)
        """The name of this server among those that share the folder."""
        self._leave: weakref.finalize[..., ResultsFolder] | None = None
        self._entering = threading.Lock()
        self.enter()

    @property
    def work(self) -> Path:
        """The folder of this server alone: what is in it goes with the server."""
        return self.work_of(self.server)

    def work_of(self, server: str) -> Path:
        """The folder of one of the servers."""
        return self.path / f".server-{server}"

    def enter(self) -> None:
        """Make the folder and this server's own in it, also where somebody has cleaned them away."""
        _check(self.path)
        if self._is_in():
            return
        with self._entering, self.locked():
            if self._is_in():  # another thread was faster, and holds the lock
                return
            self.work.mkdir(mode=0o700, exist_ok=True)
            held = os.open(self.work / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(held, fcntl.LOCK_EX)
            before, self._leave = self._leave, weakref.finalize(self, _left, self.work, held, os.getpid())
            if before is not None and (gone := before.detach()) is not None:
                os.close(gone[2][1])

    def _is_in(self) -> bool:
        """Whether this server is seen to live."""
        return self._leave is not None and (self.work / _LOCK).exists()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other threads and servers from changing what all of them share."""
        with os.fdopen(os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600), "rb+", buffering=0) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def lives(self, server: str) -> bool:
        """Whether a server's process is still there.

        By its lock and not by its last sign of life: a busy or stopped server is not dead, a killed one is at once.
        """
        if server == self.server:
            return True
        with self.locked():
            return _is_held(self.work_of(server))

    def remove_dead(self) -> list[str]:
        """Remove what dead servers were working on, and name them."""
        with self.locked():
            found = [match[1] for path in self.path.iterdir() if (match := _SERVER.fullmatch(path.name))]
            dead = [server for server in found if server != self.server and not _is_held(self.work_of(server))]
            for server in dead:
                shutil.rmtree(self.work_of(server), ignore_errors=True)
        return dead

    def close(self) -> None:
        """Leave, as when this object is collected or the process ends normally: this server's own folder goes."""
        if self._leave is not None:
            self._leave()


def _left(work: Path, held: int, process: int) -> None:
    remove_folder(work, process)
    os.close(held)


def _is_held(work: Path) -> bool:
    """Return whether a living process holds a server's folder; call it while the common folder is locked."""
    try:
        return is_locked(work / _LOCK)
    except FileNotFoundError:
        return False


def is_locked(file: Path) -> bool:
    """Return whether a process has locked a file; raise FileNotFoundError if there is no such file."""
    lock = os.open(file, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _check(folder: Path) -> None:
    """Make the folder, or see that nobody else can look into it."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.stat()
    except OSError as error:
        raise OptionError(f"{_FLAG} {folder} cannot be made: {error.strerror}; choose another folder") from error
    if not stat.S_ISDIR(found.st_mode):
        raise OptionError(f"{_FLAG} {folder} is no folder; choose another one")
    if found.st_uid != os.geteuid():
        raise OptionError(
            f"{_FLAG} {folder} belongs to user {found.st_uid}, not to the server's; choose another folder"
        )
    if found.st_mode & 0o077:
        raise OptionError(
            f"{_FLAG} {folder} is open to other users (mode {found.st_mode & 0o777:o}); chmod 700 {folder}"
        )
