"""Two calls at once, so that a race shows every time and not by luck: one stops at a line, the other runs through."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any, TypeVar

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
    ours = {"builtins", "abc"} | ({__name__.partition(".")[0]} if not _is_ours(value) else set())
    return packages - ours


def _is_ours(value: object) -> bool:
    return type(value).__module__.partition(".")[0] == __name__.partition(".")[0]


def lines_of(call: Callable[[], object], packages: Collection[str]) -> int:
    """How many lines of ``packages`` a call runs through."""
    count = Stop(packages)
    count(call)
    return count.lines


def interleaved(
    stopped: Callable[[], Result], other: Callable[[], Result], line: int, packages: Collection[str]
) -> tuple[Result, Result]:
    """Run two calls in two threads: the first is stopped before its ``line``-th line while the second runs.

    Returns:
        What both returned.

    """
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
