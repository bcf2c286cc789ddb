"""Threads of a check: one that can be left behind when a call hangs, and two calls at once that show every race."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Collection
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

Result = TypeVar("Result")

PATIENCE_S = 0.02
"""How long a stopped call waits for the other, which may in turn wait for a lock that the stopped one holds."""

_THE_ENGINES = ("vllm_mmout.engine.", "vllm_mmout.testing.")
"""Modules whose lines are the engine's part of a call, or this check's."""


class Stop:
    """Counts the Python lines that a call runs through in some packages, and calls ``then`` at one of them."""

    def __init__(
        self, packages: Collection[str], line: int | None = None, then: Callable[[], None] | None = None
    ) -> None:
        self.lines = 0
        """Lines run so far."""
        self._packages = packages
        self._line = line
        self._then = then

    def __call__(self, call: Callable[[], Result]) -> Result:
        """Run ``call``, counting; a debugger or a measurement of coverage is put back after it."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            return call()
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        module = str(frame.f_globals.get("__name__", ""))
        counts = module.partition(".")[0] in self._packages and not module.startswith(_THE_ENGINES)
        return self._step if counts else None

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            if self.lines == self._line and self._then is not None:
                self._then()
            self.lines += 1
        return self._step


def packages_of(value: object) -> set[str]:
    """The top-level packages that define an object's classes, the author's among them.

    Ours is left out where the class is not one of ours: the author's lines are the ones to stop at.
    """
    packages = {cls.__module__.partition(".")[0] for cls in type(value).__mro__}
    ours = __name__.partition(".")[0]
    return packages - {"builtins", "abc"} - ({ours} if not type(value).__module__.startswith(f"{ours}.") else set())


def lines_of(call: Callable[[], object], packages: Collection[str]) -> int:
    """How many lines of ``packages`` a call runs through."""
    count = Stop(packages)
    count(call)
    return count.lines


def interleaved(
    stopped: Callable[[], Result], other: Callable[[], Result], line: int, packages: Collection[str]
) -> tuple[Result, Result]:
    """What two calls return in two threads, the first stopped before its ``line``-th line while the second runs."""
    returned: list[Result] = []
    thread = threading.Thread(target=lambda: returned.append(other()), daemon=True)

    def run_other() -> None:
        thread.start()
        thread.join(PATIENCE_S)

    first = Stop(packages, line, run_other)(stopped)
    if thread.ident is None:  # the call was shorter this time
        thread.start()
    thread.join()
    return first, returned[0]


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
        """Run a call there and wait for it; what it raises is raised here."""
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
