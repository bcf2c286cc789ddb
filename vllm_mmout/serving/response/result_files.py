"""Hold encoded results in memory or on disk, and manage the folder where servers store them."""

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
"""Maps each format to the suffix of its files."""
MEDIA_TYPES = {name: form.media_type for name, form in SENT.items()}
"""Maps each format that a response can have to its media type."""
SOUND_TYPES = {name: form.media_type for name, form in FORMATS.items() if form.sound}
"""Maps each sound format to its media type."""

OTHER = ".bin"
"""File suffix for formats that this package does not know."""
UNKNOWN = "application/octet-stream"
"""Media type for formats that this package does not know."""

_FLAG = "--mmout-results-dir"
_LOCK = ".lock"
_SERVER = re.compile(r"\.server-([0-9a-f]{32})", re.ASCII)
_COPIED = 1 << 20
"""Chunk size in bytes for copying a file."""


class Encoded:
    """An encoded result: the bytes of a file, held in memory or on disk.

    Threads may read and close a result at the same time.

    Args:
        content: the bytes, or the path of a file alone in a folder of `own_folder`, or an unbuffered open file. The
            folder is removed by `close`, when the object is collected, or when the process ends normally.
        format: name of the format.
        media_type: media type, by default that of the format.
        size: (width, height) in pixels, or None if the result has no pixels.
        background: "transparent" or "opaque" for a picture, else None.

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
        """Return the file suffix of the format, such as ".png"."""
        return SUFFIXES.get(self.format, OTHER)

    def narrow(self, part: slice) -> None:
        """Restrict reading to the byte range ``part`` of the file. Call this before the first read."""
        self._start, self.nbytes = part.start, part.stop - part.start

    def read(self, at: int, count: int) -> bytes:
        """Return up to ``count`` bytes of the file from the offset ``at``."""
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
            while 0 < len(data) < count and (more := self._file.read(count - len(data))):  # a read may return less
                data += more
            return data

    def store(self, target: Path) -> None:
        """Move the file to the new path ``target``, readable only by this user, and close this object."""
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
        """Free the memory of the result, and remove its file from disk. Repeated calls do nothing."""
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
    """Create a temporary folder that only this user can read, in ``parent`` or in the system's default folder."""
    return Path(tempfile.mkdtemp(prefix="mmout-result-", dir=parent))


def _new(target: Path) -> BinaryIO:
    return os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _moved(file: Path, target: Path) -> None:
    """Move a file, or copy it if the target is on another disk."""
    try:
        file.chmod(0o600)
        file.rename(target)
    except OSError:
        with file.open("rb") as source, _new(target) as copy:
            shutil.copyfileobj(source, copy, _COPIED)


def remove_folder(folder: Path, process: int) -> None:
    """Remove a folder if ``process`` is the current process id, so that a forked child never removes it."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


class ResultsFolder:
    """Folder for results that several servers share. Each server keeps its temporary files in a subfolder.

    A running server holds a lock on a file in its subfolder. The lock ends with the process, even if that is killed. A
    server that finds a subfolder without a lock removes the subfolder. All methods block.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.server = secrets.token_hex(16)
        """Random id of this server among the servers that share the results folder."""
        self._leave: weakref.finalize[..., ResultsFolder] | None = None
        self._entering = threading.Lock()
        self.enter()

    @property
    def work(self) -> Path:
        """Return this server's subfolder for temporary files, which is removed when the server ends."""
        return self.work_of(self.server)

    def work_of(self, server: str) -> Path:
        """Return the subfolder for temporary files of the server with the id ``server``."""
        return self.path / f".server-{server}"

    def enter(self) -> None:
        """Create the shared folder and this server's subfolder if they are missing, and lock the subfolder."""
        _check(self.path)
        if self._is_in():
            return
        with self._entering, self.locked():
            if self._is_in():  # another thread was faster
                return
            self.work.mkdir(mode=0o700, exist_ok=True)
            held = os.open(self.work / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(held, fcntl.LOCK_EX)
            before, self._leave = self._leave, weakref.finalize(self, _left, self.work, held, os.getpid())
            if before is not None and (gone := before.detach()) is not None:
                os.close(gone[2][1])

    def _is_in(self) -> bool:
        """Return whether this server is in the shared folder: its subfolder exists, and this server has locked it."""
        return self._leave is not None and (self.work / _LOCK).exists()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the shared folder against changes by other threads and servers."""
        with os.fdopen(os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600), "rb+", buffering=0) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def lives(self, server: str) -> bool:
        """Return whether the process of the server with the id ``server`` is alive.

        The lock tells, and not a time stamp: a busy or stopped server is alive, and a killed one is dead at once.
        """
        if server == self.server:
            return True
        with self.locked():
            return _is_held(self.work_of(server))

    def remove_dead(self) -> list[str]:
        """Remove the subfolders of servers that have died, and return the ids of these servers."""
        with self.locked():
            servers = [match[1] for path in self.path.iterdir() if (match := _SERVER.fullmatch(path.name))]
            dead = [server for server in servers if server != self.server and not _is_held(self.work_of(server))]
            for server in dead:
                shutil.rmtree(self.work_of(server), ignore_errors=True)
        return dead

    def close(self) -> None:
        """Remove this server's subfolder.

        The subfolder is also removed when this object is garbage-collected, or when the process exits.
        """
        if self._leave is not None:
            self._leave()


def _left(work: Path, held: int, process: int) -> None:
    remove_folder(work, process)
    os.close(held)


def _is_held(work: Path) -> bool:
    """Return whether a server is alive. A living server holds a lock on a file in its subfolder ``work``.

    The caller must hold the lock of the shared results folder, because a new server creates its subfolder before it
    locks the file.
    """
    try:
        return is_locked(work / _LOCK)
    except FileNotFoundError:
        return False


def is_locked(file: Path) -> bool:
    """Return whether a process has locked a file with flock. Raise FileNotFoundError if the file is missing."""
    lock = os.open(file, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _check(folder: Path) -> None:
    """Create the folder if it is missing. Raise OptionError unless it is accessible to this user only."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        state = folder.stat()
    except OSError as error:
        raise OptionError(f"{_FLAG} {folder} cannot be made: {error.strerror}; choose another folder") from error
    if not stat.S_ISDIR(state.st_mode):
        raise OptionError(f"{_FLAG} {folder} is no folder; choose another one")
    if state.st_uid != os.geteuid():
        raise OptionError(
            f"{_FLAG} {folder} belongs to user {state.st_uid}, not to the server's; choose another folder"
        )
    if state.st_mode & 0o077:
        raise OptionError(
            f"{_FLAG} {folder} is open to other users (mode {state.st_mode & 0o777:o}); chmod 700 {folder}"
        )
