"""Run calls in threads, to test them. `WatchedThread` detects calls that hang. `interleaved` reveals data races."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Collection
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

Result = TypeVar("Result")

PATIENCE_S = 0.02
"""Longest time in seconds that `interleaved` pauses one call while the other call runs.

Without a limit, both calls would wait forever if the running call needs a lock that the paused call holds.
"""

_IGNORED_MODULES = ("vllm_mmout.engine.", "vllm_mmout.testing.")
"""Prefixes of the names of modules whose executed lines `LineCounter` does not count, because the modules do not belong
to the processor under test."""


class LineCounter:
    """Callable that runs a function, and counts the executed lines of code in the modules of ``packages``.

    When the count reaches ``line``, it calls ``then`` before the next line runs.
    """

    def __init__(
        self, packages: Collection[str], line: int | None = None, then: Callable[[], None] | None = None
    ) -> None:
        self.lines = 0
        """Number of lines executed so far."""
        self._packages = packages
        self._line = line
        self._then = then

    def __call__(self, call: Callable[[], Result]) -> Result:
        """Return ``call()``, and count the lines that the call executes."""
        trace = sys.gettrace()
        sys.settrace(self._enter)
        try:
            return call()
        finally:
            sys.settrace(trace)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        module = str(frame.f_globals.get("__name__", ""))
        counts = module.partition(".")[0] in self._packages and not module.startswith(_IGNORED_MODULES)
        return self._step if counts else None

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            if self.lines == self._line and self._then is not None:
                self._then()
            self.lines += 1
        return self._step


def packages_of(value: object) -> set[str]:
    """Return the top-level packages that define an object's class and base classes.

    This package is left out unless the class itself belongs to it, so that calls are stopped in the author's code.
    """
    packages = {cls.__module__.partition(".")[0] for cls in type(value).__mro__}
    ours = __name__.partition(".")[0]
    return packages - {"builtins", "abc"} - ({ours} if not type(value).__module__.startswith(f"{ours}.") else set())


def lines_of(call: Callable[[], object], packages: Collection[str]) -> int:
    """Run ``call``. Return the number of executed lines of code in modules of ``packages``."""
    count = LineCounter(packages)
    count(call)
    return count.lines


def interleaved(
    stopped: Callable[[], Result], other: Callable[[], Result], line: int, packages: Collection[str]
) -> tuple[Result, Result]:
    """Call ``stopped``, and pause this call at a line while ``other`` runs in a thread. Return both results.

    The pause is before the executed line ``line``, counted from 0. Only lines in modules of ``packages`` are counted.
    ``stopped`` goes on when ``other`` has returned, or after `PATIENCE_S` seconds.
    """
    returned: list[Result] = []
    thread = threading.Thread(target=lambda: returned.append(other()), daemon=True)

    def run_other() -> None:
        thread.start()
        thread.join(PATIENCE_S)

    first = LineCounter(packages, line, run_other)(stopped)
    if thread.ident is None:  # the call ran fewer lines this time
        thread.start()
    thread.join()
    return first, returned[0]


class HangsError(BaseException):
    """Error for a call that does not return in time.

    It is a BaseException, because hypothesis would repeat the call after an ordinary exception, to shrink the example.
    """


class WatchedThread:
    """Thread that runs calls one after another, with a timeout for each call.

    One thread serves all calls, because torch starts threads of its own for each thread that uses it.
    """

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
        if not self._is_busy:  # if it is busy, it hangs, or the waiting caller was interrupted
            self._thread.join()  # a daemon thread still running when the interpreter exits may crash it

    def __call__(self, call: Callable[[], object]) -> None:
        """Run ``call`` in the thread, and wait for it. Raise its exception, or HangsError after the timeout."""
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
            except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
                self._ends.put(error)

    def _where(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001 - Python's API for thread stacks
        if frame is None:
            return "at its end"
        return f"in {frame.f_code.co_name}(), {frame.f_code.co_filename}:{frame.f_lineno}"
