"""Store results in a folder, from which clients download them by random names."""

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
"""Pattern of a stored result's file name: 43 random characters and a suffix."""
_LONGEST_PAUSE = 60.0
"""Maximum number of seconds between two removals of expired results."""


class ResultStore:
    """Store for results that clients download by URL. Several processes may share its folder.

    All methods block. A thread removes expired results, those of other servers included.
    """

    def __init__(self, folder: Path, ttl: float, max_bytes: int, *, clock: Callable[[], float] = time.time) -> None:
        self.shared = ResultsFolder(folder)
        """Manager of the store's folder, which coordinates the servers that share the folder."""
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
        """Create a store in a temporary folder, which is removed when the store is closed or the process exits."""
        folder = TemporaryFolder()
        store = cls(folder.path, ttl, max_bytes)
        store._gone = weakref.finalize(store, folder.remove)
        return store

    _gone: Callable[[], object] | None = None

    def new_name(self, entry: Encoded) -> str:
        """Return a random file name for a result, with the suffix of its format."""
        return secrets.token_urlsafe(32) + entry.suffix

    def keep(self, entry: Encoded, name: str | None = None) -> str:
        """Move a result into the store, and return its name. If the store is full, remove the oldest results."""
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
        """Move all results into the store, or none if an error occurs. Return their names."""
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
        """Return whether the store has a result called ``name``."""
        return bool(_NAME.fullmatch(name)) and (self.folder / name).exists()

    def remove(self, *names: str) -> None:
        """Remove the results that have the given names. Names of missing results are ignored."""
        for name in filter(_NAME.fullmatch, names):
            (self.folder / name).unlink(missing_ok=True)

    def find(self, name: str) -> Encoded | None:
        """Open the result called ``name``, or return None if it is missing or expired.

        An open result stays readable after it expires.
        """
        if not _NAME.fullmatch(name):
            return None
        try:
            file = _opened(self.folder / name)
        except OSError:
            return None
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode) or self._expired(state, self.ttl):
            file.close()
            return None
        return Encoded(file, _FORMATS[name[43:]])

    def sweep(self) -> None:
        """Remove expired results, and the subfolders of servers that have died."""
        with contextlib.suppress(FileNotFoundError):  # the folder may have been removed
            self.shared.remove_dead()
            with self.shared.locked():
                self._remove_old(room=0)

    def close(self) -> None:
        """Stop the cleanup thread, and remove this server's subfolder, or the whole folder if it is temporary."""
        self._stop.set()
        self.shared.close()
        if self._gone is not None:
            self._gone()

    def _remove_old(self, room: int) -> None:
        """Remove expired results. Then remove the oldest results until ``room`` bytes are free in the store.

        The caller must hold the lock of the folder.
        """
        kept: list[tuple[int, str, int]] = []
        for name, state in self._files():
            if self._expired(state, self.ttl):
                (self.folder / name).unlink(missing_ok=True)
            else:
                kept.append((state.st_mtime_ns, name, state.st_size))
        total = sum(size for _, _, size in kept) + room
        for _, name, size in sorted(kept):
            if total <= self.max_bytes:
                break
            (self.folder / name).unlink(missing_ok=True)
            total -= size

    def _files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the name and the file status of each stored result."""
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if _NAME.fullmatch(entry.name):
                    with contextlib.suppress(FileNotFoundError):  # another process has removed it
                        yield entry.name, entry.stat(follow_symlinks=False)

    def _expired(self, state: os.stat_result, ttl: float) -> bool:
        """Return whether a file is older than ``ttl`` seconds, or dated in the future after a clock change."""
        return not -ttl * 1e9 < time_ns(self._clock()) - state.st_mtime_ns < ttl * 1e9


def time_ns(seconds: float) -> int:
    """Convert seconds to integer nanoseconds without the rounding error of a float product."""
    whole, part = divmod(seconds, 1)
    return int(whole) * 10**9 + round(part * 1e9)


def _opened(path: Path) -> BinaryIO:
    """Open a file for reading. Raise OSError for a symbolic link or a folder."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        return cast("BinaryIO", os.fdopen(number, "rb", buffering=0))
    except OSError:  # a folder
        os.close(number)
        raise


def _sweeping(store: weakref.ref[ResultStore], stop: threading.Event, pause: float) -> None:
    """Remove expired results every ``pause`` seconds, until the store is closed or garbage-collected."""
    while not stop.wait(pause):
        living_store = store()
        if living_store is None:
            return
        with contextlib.suppress(OSError):  # requests that store a result report the error of the disk
            living_store.sweep()
        del living_store


async def kept(store: ResultStore, entries: list[Encoded]) -> list[str]:
    """Move results into the store without blocking the event loop, and return the names of the results.

    ``store.keep_all`` runs in a thread. If the task is cancelled, the results are removed from the store.
    """
    from vllm_mmout.engine.threads import in_thread  # the import needs vLLM, and a store works without vLLM

    return await in_thread(lambda: store.keep_all(entries), lambda names: store.remove(*names))
