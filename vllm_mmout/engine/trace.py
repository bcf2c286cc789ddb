"""Trace file with the time of each stage of each request in all processes, for the viewer Perfetto.

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from vllm_mmout.errors import SaveError
from vllm_mmout.log import logger
from vllm_mmout.stopwatch import FILES, Stopwatch

STAGES = ("read", "map", "queue", "load", "forward", "reduce", "copy", "transport", "decode", "blend", "write")
"""Names of a request's stages in the trace file, in their order from reading the input to writing the result."""
_WAITS = frozenset({"queue", "transport", "request"})
"""Names of the stages where a request only waits. Waits of several requests may overlap, so the viewer shows each
request in a separate row."""


class Trace:
    """Writer of a trace file. Any thread may use the writer. If a write fails, the trace ends, but requests go on.

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
        """Create the trace file, or replace an older trace, before the engine's processes start.

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

    def add(self, name: str, began: float, ended: float, key: str = "", **fields: Any) -> None:
        """Add an event of the current thread to the trace file.

        Args:
            name: name of the event.
            began: time when the event began, by ``time.monotonic()``.
            ended: time when the event ended, by ``time.monotonic()``.
            key: id that tells waits of the same name apart.
            fields: further fields of the event.

        """
        thread, called = threading.get_native_id(), threading.current_thread().name
        if self._threads.get(thread) != called:
            self._threads[thread] = called
            self._name("thread_name", called)
        event = {"name": name, "cat": "mmout", "pid": os.getpid(), "tid": thread, "ts": _us(began), **fields}
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
    """Recorder of the stages of one request, or of one block of its tiles, for a trace file."""

    trace: Trace
    request: str
    tile: int | None = None
    """Index of the first tile of a block of tiles, or None for the whole request."""
    tiles: int = 1
    """Number of tiles in the block of tiles. Ignored for a whole request."""

    def stage(self, name: str, began: float, ended: float | None = None, **fields: Any) -> None:
        """Add a stage of this request to the trace file.

        Args:
            name: name of the stage, usually one of `STAGES`.
            began: time when the stage began, by ``time.monotonic()``.
            ended: time when the stage ended, or None for now.
            fields: further values to show with the stage.

        """
        ended = time.monotonic() if ended is None else ended
        key = blake2b(f"{self.request}/{self.tile}".encode(), digest_size=8).hexdigest()
        flow: dict[str, Any] = {}
        if name in STAGES:  # draws arrows from each stage to the next
            flow = {"bind_id": f"0x{key}", "flow_out": name != STAGES[-1], "flow_in": name != STAGES[0]}
        tile = {} if self.tile is None else {"tile": self.tile, "tiles": self.tiles}
        self.trace.add(name, began, ended, f"0x{key}", **flow, args={"request": self.request, **tile, **fields})


TRACED: ContextVar[Traced | None] = ContextVar("mmout_traced", default=None)
"""Context variable with the recorder for the current request or block of tiles. None if tracing is off."""


@contextmanager
def tracing(traced: Traced | None) -> Iterator[None]:
    """Record in the trace file each stage of a request in the ``with`` block. Do nothing if ``traced`` is None.

    Calls of `stage` and `add_stage` report the stages. `seconds_on_files` measures the time that was spent on files.
    """
    request, files = TRACED.set(traced), FILES.set(None if traced is None else Stopwatch())
    try:
        yield
    finally:
        FILES.reset(files)
        TRACED.reset(request)


@contextmanager
def stage(name: str, tile: int | None = None, tiles: int = 1, **fields: Any) -> Iterator[None]:
    """Record the time of the ``with`` block as a stage of the current request, unless the block raises."""
    began = time.monotonic()
    yield
    add_stage(name, began, tile=tile, tiles=tiles, **fields)


def add_stage(
    name: str, began: float, ended: float | None = None, tile: int | None = None, tiles: int = 1, **fields: Any
) -> None:
    """Record a stage of the current request in the trace file.

    If ``tile`` is not None, record the stage for ``tiles`` tiles of the request. ``tile`` is the index of the first
    tile. Do nothing if tracing is off.
    """
    traced = TRACED.get()
    if traced is not None:
        traced = traced if tile is None else Traced(traced.trace, traced.request, tile, tiles)
        traced.stage(name, began, ended, **fields)


def seconds_on_files() -> float:
    """Return the seconds that the current request spent on reading or writing pixels since the last call."""
    watch = FILES.get()
    return 0.0 if watch is None else watch.take()


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _us(seconds: float) -> float:
    """Convert seconds to microseconds, rounded to three decimals.

    All times are rounded in one way, so that a stage ends exactly when the next stage begins.
    """
    return _ns(seconds) / 1e3


def _opened(file: str) -> int:
    try:
        return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise SaveError(
            f"trace: {file} cannot be written: {error.strerror}; name a file in an existing folder"
        ) from error
