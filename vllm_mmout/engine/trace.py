"""Trace, a file with the time of each stage of each request in all processes, which Perfetto can show.

The file has Chrome's JSON format: an array with an event on each line. The closing bracket is missing, which the format
allows. Each process appends whole lines. Times are of ``time.monotonic()``, a clock that all processes of a machine
share.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from vllm_mmout.errors import SaveError
from vllm_mmout.log import logger

STAGES = ("read", "map", "queue", "forward", "reduce", "copy", "transport", "decode", "blend", "write")
"""Stages of each tile, and of each input that fits one forward, in order."""
_WAITS = frozenset({"queue", "transport", "request"})
"""Stages during which a request only waits. They may overlap, so each is drawn in a separate row."""


class Trace:
    """Writer that appends events to a trace file from any thread. A failed write ends the trace, but no request.

    Raises:
        SaveError: the file cannot be opened for writing.

    """

    def __init__(self, file: str) -> None:
        self._file = file
        self._threads: dict[int, str] = {}
        self._descriptor = _opened(file)
        self._close = weakref.finalize(self, os.close, self._descriptor)
        in_frontend = multiprocessing.parent_process() is None
        self._name("process_name", "frontend" if in_frontend else multiprocessing.current_process().name)

    @staticmethod
    def begin(file: str) -> None:
        """Create the file, or replace an older trace, before a process of the engine is started.

        Raises:
            SaveError: the file exists and is not a trace, or cannot be written.

        """
        before = Path(file)
        with suppress(OSError):
            if before.is_file():
                with before.open("rb") as opened:
                    if opened.read(2) not in (b"", b"[\n"):
                        raise SaveError(f"trace: {file} exists and holds something else; name another file")
                before.unlink()
        descriptor = _opened(file)
        os.write(descriptor, b"[\n")
        os.close(descriptor)

    def add(self, name: str, began: float, ended: float, key: str = "", **told: Any) -> None:
        """Add an event of the current thread.

        Args:
            name: name of the event.
            began: begin of the event, by ``time.monotonic()``.
            ended: end of the event, by ``time.monotonic()``.
            key: id that tells waits of the same name apart.
            told: further fields of the event.

        """
        thread, called = threading.get_native_id(), threading.current_thread().name
        if self._threads.get(thread) != called:
            self._threads[thread] = called
            self._name("thread_name", called)
        event = {"name": name, "cat": "mmout", "pid": os.getpid(), "tid": thread, "ts": _us(began), **told}
        if name in _WAITS:
            self._append({**event, "ph": "b", "id": key})
            self._append({**event, "ph": "e", "id": key, "ts": _us(ended), "args": {}})
        else:
            self._append({**event, "ph": "X", "dur": (_ns(ended) - _ns(began)) / 1e3})

    def _name(self, kind: str, name: str) -> None:
        self._append(
            {"name": kind, "ph": "M", "pid": os.getpid(), "tid": threading.get_native_id(), "args": {"name": name}}
        )

    def _append(self, event: Mapping[str, Any]) -> None:
        if not self._close.alive:
            return
        try:
            os.write(self._descriptor, msgspec.json.encode(event) + b",\n")
        except OSError as error:
            self._close()
            logger.error("the trace ends here, %s cannot be written: %s", self._file, error.strerror)


@dataclass(frozen=True, slots=True)
class Traced:
    """Request of a user in a trace, or a tile of the request."""

    trace: Trace
    request: str
    tile: int | None = None

    def of_tile(self, tile: int) -> Traced:
        """Return a tile of the request."""
        return replace(self, tile=tile)

    @property
    def named(self) -> tuple[str, int | None]:
        """Request id and tile, which are sent to the worker."""
        return self.request, self.tile

    def stage(self, name: str, began: float, ended: float | None = None, **told: Any) -> float:
        """Add a stage, and return the time of its end, so that the next stage may begin then.

        Args:
            name: name of the stage, usually one of `STAGES`.
            began: begin of the stage, by ``time.monotonic()``.
            ended: end of the stage, or None for now.
            told: further values to show with the stage.

        """
        ended = time.monotonic() if ended is None else ended
        key = blake2b(f"{self.request}/{self.tile}".encode(), digest_size=8).hexdigest()
        flow: dict[str, Any] = {}
        if name in STAGES:  # draws arrows from each stage to the next
            flow = {"bind_id": f"0x{key}", "flow_out": name != STAGES[-1], "flow_in": name != STAGES[0]}
        tile = {} if self.tile is None else {"tile": self.tile}
        self.trace.add(name, began, ended, f"0x{key}", **flow, args={"request": self.request, **tile, **told})
        return ended


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _us(seconds: float) -> float:
    """Convert seconds to microseconds, rounded to a nanosecond so that a stage ends exactly where the next begins."""
    return _ns(seconds) / 1e3


def _opened(file: str) -> int:
    try:
        return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise SaveError(
            f"trace: {file} cannot be written: {error.strerror}; name a file in an existing folder"
        ) from error
