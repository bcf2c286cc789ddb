"""ResultsFolder: the folder that the servers of a machine share, and what each of them has in it while it lives."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import stat
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

from vllm_mmout.errors import OptionError

_FLAG = "--mmout-results-dir"
_LOCK = ".lock"
_SERVER = re.compile(r"\.server-([0-9a-f]{32})", re.ASCII)


class ResultsFolder:
    """A folder for this user alone, in which each server has a folder of its own for what it is working on.

    A server that lives holds a lock on a file there, which ends with its process however that ends; whoever finds the
    lock free removes what the dead server has left. All methods block.

    Args:
        path: made if it is absent. Files of others in it are left alone.

    Raises:
        OptionError: the folder cannot be made, belongs to another user, or is open to others.

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
        """Make the folder and this server's own in it, also where somebody has cleaned them away.

        Raises:
            OptionError: as of the class.

        """
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
        """Whether a server's process is still there."""
        if server == self.server:
            return True
        with self.locked():
            return _is_held(self.work_of(server))

    def remove_dead(self) -> list[str]:
        """Remove what dead servers were working on.

        Returns:
            Their names.

        """
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
    """Remove a server's folder, in the process that made it alone: a fork has the same objects."""
    if os.getpid() == process:
        shutil.rmtree(work, ignore_errors=True)
    os.close(held)


def _is_held(work: Path) -> bool:
    """Whether a living process holds a server's folder; asked while the common folder is locked."""
    try:
        lock = os.open(work / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        return False
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
