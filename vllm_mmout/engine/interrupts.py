"""Ctrl-C and a synchronous engine, whose state an interrupt in the middle of a step would leave half changed for good.

An engine in this process runs its scheduler here; one in processes of its own gets messages of several frames, and half
a message would garble the next one. Only where such an engine waits for an answer does a Ctrl-C come at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeAlias

Handler: TypeAlias = Callable[[int, FrameType | None], Any]


class Interrupts:
    """Holds a Ctrl-C back while an engine is being changed."""

    def __init__(self) -> None:
        self._before: Handler | None = None
        """The handler that is held back, None outside `held_back`."""
        self._came: list[FrameType | None] = []

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Let a Ctrl-C wait until the block ends; a second one goes through at once."""
        before = signal.getsignal(signal.SIGINT)
        in_main = threading.current_thread() is threading.main_thread()
        if self._before is not None or not in_main or not callable(before):
            yield  # held back already, or no Python code runs here on a Ctrl-C
            return
        self._came.clear()
        signal.signal(signal.SIGINT, self._hold)
        try:
            self._before = before
            yield
        finally:
            self._before = None  # first: a Ctrl-C can come as soon as its handler is back
            signal.signal(signal.SIGINT, before)
        if self._came:
            before(signal.SIGINT, self._came[0])

    @contextmanager
    def let_through(self) -> Iterator[None]:
        """Inside `held_back`: let a Ctrl-C come at once, also one that waits."""
        before = self._before
        if before is None:
            yield
            return
        signal.signal(signal.SIGINT, before)
        if self._came:
            before(signal.SIGINT, self._came.pop())
        yield
        signal.signal(signal.SIGINT, self._hold)

    def _hold(self, signum: int, frame: FrameType | None) -> None:
        if self._came and self._before is not None:
            self._before(signum, frame)
        self._came.append(frame)
