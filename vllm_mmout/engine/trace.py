"""Trace: where the time of requests goes, stage by stage and over all processes, as a file that Perfetto shows.

The file has Chrome's JSON format: an array of events, a line each, whose closing bracket may be missing. Each process
appends whole lines. Times are those of ``time.monotonic()``, one clock for all processes of a machine.
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
"""Of each tile, and of each input that fits one forward, in this order."""
_WAITS = frozenset({"queue", "transport", "request"})
"""What no thread works on: several overlap, and each has a line of its own in the picture."""


class Trace:
    """Appends events to a file, from any thread; what fails here fails no request.

    Raises:
        SaveError: the file cannot be written.

    """

    def __init__(self, file: str) -> None:
        self._file = file
        self._threads: dict[int, str] = {}
        self._descriptor = _opened(file)
        self._close = weakref.finalize(self, os.close, self._descriptor)
        of_the_user = multiprocessing.parent_process() is None
        self._name("process_name", "frontend" if of_the_user else multiprocessing.current_process().name)

    @staticmethod
    def begin(file: str) -> None:
        """Make the file anew, before a process of the engine is started; one that is no trace is refused."""
        before = Path(file)
        with suppress(OSError):
            if before.is_file():
                with before.open("rb") as opened:
                    if opened.read(2) not in (b"", b"[\n"):
                        raise SaveError(f"trace: {file} is there and holds something else; name another file")
                before.unlink()
        descriptor = _opened(file)
        os.write(descriptor, b"[\n")
        os.close(descriptor)

    def add(self, name: str, began: float, ended: float, key: str = "", **told: Any) -> None:
        """Add what this thread did between two times; of what waits, ``key`` says which of its kind it is."""
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

    def _name(self, what: str, name: str) -> None:
        self._append(
            {"name": what, "ph": "M", "pid": os.getpid(), "tid": threading.get_native_id(), "args": {"name": name}}
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
    """One user's request in a trace, or one of its tiles."""

    trace: Trace
    request: str
    tile: int | None = None

    def of_tile(self, tile: int) -> Traced:
        """One tile of the request."""
        return replace(self, tile=tile)

    @property
    def named(self) -> tuple[str, int | None]:
        """What travels to the worker."""
        return self.request, self.tile

    def stage(self, name: str, began: float, ended: float | None = None, **told: Any) -> float:
        """Add a stage, by default one that ends now; gives its end, with which another may begin."""
        ended = time.monotonic() if ended is None else ended
        key = blake2b(f"{self.request}/{self.tile}".encode(), digest_size=8).hexdigest()
        flow: dict[str, Any] = {}
        if name in STAGES:  # arrows from one stage to the next
            flow = {"bind_id": f"0x{key}", "flow_out": name != STAGES[-1], "flow_in": name != STAGES[0]}
        tile = {} if self.tile is None else {"tile": self.tile}
        self.trace.add(name, began, ended, f"0x{key}", **flow, args={"request": self.request, **tile, **told})
        return ended


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _us(seconds: float) -> float:
    """Microseconds, to a nanosecond, so that one stage ends where the next begins."""
    return _ns(seconds) / 1e3


def _opened(file: str) -> int:
    try:
        return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise SaveError(
            f"trace: {file} cannot be written: {error.strerror}; name a file in a folder that is there"
        ) from error
