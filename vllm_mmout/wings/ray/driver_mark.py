"""Guard a results folder with a lock file, so that only one process writes results there."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from time import sleep
from typing import Final

import msgspec

from vllm_mmout.errors import MMOutError, SaveError
from vllm_mmout.wings.ray.objects import FOLDER, Objects

NAME: Final = f"{FOLDER}/driver"
BEAT_S: Final = 5.0
"""Seconds between two writes of a process's lock file. The writes show that the process is alive."""
PATIENCE: Final = 4
"""Number of checks of a lock file, `BEAT_S` seconds apart. If the file never changes, its process is dead."""


class Driver(msgspec.Struct, frozen=True):
    """Content of the lock file of a results folder. It identifies the process that writes results there."""

    token: str
    host: str
    process: int
    begun: str
    """Time in UTC when the process started its run of ``vllm-mmout run --ray``, such as "2024-06-01 12:00:00 UTC"."""
    beats: int = 0
    """Number of times that the process has written its lock file."""

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}, which began at {self.begun}"


class DriverMark:
    """Lock file that reserves a folder or bucket of results for one process.

    If another process's lock file changes within some seconds, that process is alive. Clocks and process numbers are
    not compared: clocks may differ between machines, and process numbers between containers. If two processes begin at
    the same moment, one of them is refused when it renews its lock file.
    """

    def __init__(self, objects: Objects, *, beat_s: float = BEAT_S, wait: Callable[[float], object] = sleep) -> None:
        self._objects = objects
        self._beat_s = beat_s
        self._wait = wait
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        self._mine = Driver(secrets.token_hex(8), socket.gethostname(), os.getpid(), now)
        self._other: Driver | None = None
        self._writing = threading.Lock()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock while the context is open: write the lock file, keep rewriting it, and remove it at the end.

        Raises:
            MMOutError: another process is writing results; the message names it.

        """
        self._watch()
        self.renew()
        mark = self._read()
        if not self._is_mine(mark):
            self._other = mark
        self.check()
        ended = threading.Event()
        beats = threading.Thread(target=self._beat, args=(ended,), name="mmout-driver", daemon=True)
        beats.start()
        try:
            yield
        finally:
            ended.set()
            beats.join()
            with suppress(SaveError):  # it must not hide an error of the run; a lock file left behind is not renewed
                if self._is_mine(self._read()):
                    self._objects.remove(self._objects.address(NAME))

    def check(self) -> None:
        """Raise MMOutError if another process has overwritten the lock file."""
        if self._other is not None:
            raise self._refused(self._other)

    def renew(self) -> None:
        """Write the lock file again, unless another process has overwritten it."""
        with self._writing:
            mark = self._read()
            if mark is not None and self._mine.beats and not self._is_mine(mark):
                self._other = mark
                return
            self._mine = msgspec.structs.replace(self._mine, beats=self._mine.beats + 1)
            self._objects.write(NAME, msgspec.json.encode(self._mine))

    def _beat(self, ended: threading.Event) -> None:
        while not ended.wait(self._beat_s):
            with suppress(Exception):  # a store that fails now may work next time
                self.renew()

    def _watch(self) -> None:
        """Watch the lock file of another process for some seconds. Raise MMOutError if the file changes."""
        first = self._read()
        if first is None:
            return
        longest = PATIENCE * self._beat_s
        print(f"waiting up to {longest:g} s to see whether {first} is still at work", file=sys.stderr)
        for _ in range(PATIENCE):
            self._wait(self._beat_s)
            mark = self._read()
            if mark is None:
                return
            if mark != first:
                raise self._refused(mark)

    def _refused(self, other: Driver) -> MMOutError:
        return MMOutError(
            f"{self._objects.address('')} is being written by another run: {other}; wait for its end, end it, or choose"
            " another -o"
        )

    def _is_mine(self, mark: Driver | None) -> bool:
        return mark is None or mark.token == self._mine.token

    def _read(self) -> Driver | None:
        stored = self._objects.read(NAME)
        if stored is None:
            return None
        try:
            return msgspec.json.decode(stored, type=Driver)
        except msgspec.MsgspecError:  # written by another release, or damaged
            return None
