"""A thread that runs calls one after the other and can be left behind when one of them hangs."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self


class HangsError(BaseException):
    """A call does not come back; no ordinary exception, since shrinking would wait for it again and again."""


class WatchedThread:
    """One thread for many calls: a new one for each would have torch start threads of its own each time."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._ends: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._is_busy = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._calls.put(None)
        if not self._is_busy:  # else it hangs, or whoever waited for it was interrupted
            self._thread.join()  # a daemon that still runs when the interpreter ends may crash it

    def __call__(self, call: Callable[[], object]) -> None:
        """Run a call there and wait for it; what it raises is raised here.

        Raises:
            HangsError: it is not back in time; the message says where it is. The thread can run no other call then.

        """
        self._is_busy = True
        self._calls.put(call)
        try:
            error = self._ends.get(timeout=self._patience_s)
        except queue.Empty:
            raise HangsError(f"not back after {self._patience_s:g} s; it is {self._where()}") from None
        self._is_busy = False
        if error is not None:
            raise error

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
                self._ends.put(None)
            except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
                self._ends.put(error)

    def _where(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001 - Python's way to look at threads
        if frame is None:
            return "at its end"
        return f"in {frame.f_code.co_name}(), {frame.f_code.co_filename}:{frame.f_lineno}"
