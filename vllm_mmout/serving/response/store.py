"""ResultStore: results that wait in a folder to be fetched by an unguessable name; the answer to who fetches one."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from vllm_mmout.errors import OptionError
from vllm_mmout.serving.response.result_files import OTHER, SUFFIXES, Encoded, ResultsFolder
from vllm_mmout.serving.response.temporary_folders import TemporaryFolder

_FORMATS = {suffix: name for name, suffix in SUFFIXES.items()} | {OTHER: "bin"}
_ENDS = "|".join(re.escape(suffix) for suffix in _FORMATS)
_NAME = re.compile(rf"[A-Za-z0-9_-]{{43}}(?:{_ENDS})", re.ASCII)
"""What `secrets.token_urlsafe` makes of 32 bytes, and a suffix."""
_LONGEST_PAUSE = 60.0
"""Seconds after which expired results are looked for, at most."""


class ResultStore:
    """Results in a folder that several processes may share.

    All methods block. A thread removes what has expired, also what another server has left there.
    """

    def __init__(self, folder: Path, ttl: float, max_bytes: int, *, clock: Callable[[], float] = time.time) -> None:
        self.shared = ResultsFolder(folder)
        """What other servers use as well."""
        self.folder = folder
        self.ttl = ttl
        self.max_bytes = max_bytes
        self._clock = clock
        self._stop = threading.Event()
        weakref.finalize(self, self._stop.set)
        pause = min(_LONGEST_PAUSE, max(ttl / 4, 0.05))
        threading.Thread(
            target=_sweeping, args=(weakref.ref(self), self._stop, pause), name="mmout-results", daemon=True
        ).start()

    @classmethod
    def temporary(cls, ttl: float, max_bytes: int) -> ResultStore:
        """A store in a folder of its own, which is removed by `close`, or when the process ends normally."""
        folder = TemporaryFolder()
        store = cls(folder.path, ttl, max_bytes)
        store._gone = weakref.finalize(store, folder.remove)
        return store

    _gone: Callable[[], object] | None = None

    def new_name(self, entry: Encoded) -> str:
        """A name under which a result can be kept."""
        return secrets.token_urlsafe(32) + entry.suffix

    def keep(self, entry: Encoded, name: str | None = None) -> str:
        """Take a result over and close it, remove the oldest ones until there is room for it, and name it."""
        if entry.nbytes > self.max_bytes:
            size = entry.nbytes
            entry.close()
            raise OptionError(
                f"the result has {size} bytes, and {self.max_bytes} of all results are stored (--mmout-max-results);"
                " fetch it from /v1/images/edits with response_format=b64_json or the header Accept",
                param="response_format",
            )
        self.shared.enter()
        final = self.folder / (name or self.new_name(entry))
        part = self.shared.work / f"{final.name}.part"
        try:
            entry.store(part)
            with self.shared.locked():
                now = time_ns(self._clock())
                os.utime(part, ns=(now, now))
                self._remove_old(room=part.stat().st_size)
                part.rename(final)
        except OSError as error:
            error.filename = error.filename or str(self.folder)
            raise
        finally:
            entry.close()
            part.unlink(missing_ok=True)
        return final.name

    def keep_all(self, entries: Sequence[Encoded]) -> list[str]:
        """Keep all results, or none, as `keep`."""
        names: list[str] = []
        with contextlib.ExitStack() as closing, contextlib.ExitStack() as unfinished:
            for entry in entries:
                closing.callback(entry.close)
            for entry in entries:
                names.append(self.keep(entry))
                unfinished.callback(self.remove, names[-1])
            unfinished.pop_all()
        return names

    def has(self, name: str) -> bool:
        """Whether a result is there."""
        return bool(_NAME.fullmatch(name)) and (self.folder / name).exists()

    def remove(self, *names: str) -> None:
        """Remove results, as far as they are there."""
        for name in filter(_NAME.fullmatch, names):
            (self.folder / name).unlink(missing_ok=True)

    def find(self, name: str) -> Encoded | None:
        """A result, open: it can be read to its end though it expires meanwhile; None if there is none any more."""
        if not _NAME.fullmatch(name):
            return None
        try:
            file = _opened(self.folder / name)
        except OSError:
            return None
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or self._expired(found, self.ttl):
            file.close()
            return None
        return Encoded(file, _FORMATS[name[43:]])

    def sweep(self) -> None:
        """Remove what has expired, and what dead servers have left."""
        with contextlib.suppress(FileNotFoundError):  # the folder may be gone
            self.shared.remove_dead()
            with self.shared.locked():
                self._remove_old(room=0)

    def close(self) -> None:
        """End the thread, leave the folder, and remove it if it is a temporary one."""
        self._stop.set()
        self.shared.close()
        if self._gone is not None:
            self._gone()

    def _remove_old(self, room: int) -> None:
        """Remove what has expired, and the oldest results until there is room for another one; under the lock."""
        kept: list[tuple[int, str, int]] = []
        for name, found in self._files():
            if self._expired(found, self.ttl):
                (self.folder / name).unlink(missing_ok=True)
            else:
                kept.append((found.st_mtime_ns, name, found.st_size))
        total = sum(size for _, _, size in kept) + room
        for _, name, size in sorted(kept):
            if total <= self.max_bytes:
                break
            (self.folder / name).unlink(missing_ok=True)
            total -= size

    def _files(self) -> Iterator[tuple[str, os.stat_result]]:
        """The results in the folder."""
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if _NAME.fullmatch(entry.name):
                    with contextlib.suppress(FileNotFoundError):  # another process has removed it
                        yield entry.name, entry.stat(follow_symlinks=False)

    def _expired(self, found: os.stat_result, ttl: float) -> bool:
        """Whether a file is too old; one from the future was stored before the clock was set back."""
        return not -ttl * 1e9 < time_ns(self._clock()) - found.st_mtime_ns < ttl * 1e9


def time_ns(seconds: float) -> int:
    """A time in nanoseconds, as files have it; a product of the whole time would be some hundred off."""
    whole, part = divmod(seconds, 1)
    return int(whole) * 10**9 + round(part * 1e9)


def _opened(path: Path) -> BinaryIO:
    """A file that is no symbolic link, open for reading."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        return cast("BinaryIO", os.fdopen(number, "rb", buffering=0))
    except OSError:  # a folder
        os.close(number)
        raise


def _sweeping(store: weakref.ref[ResultStore], stop: threading.Event, pause: float) -> None:
    """Remove what expires, as long as the store is there."""
    while not stop.wait(pause):
        there = store()
        if there is None:
            return
        with contextlib.suppress(OSError):  # a disk that fails is told to those who store on it
            there.sweep()
        del there
