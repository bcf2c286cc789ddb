"""Delay a Ctrl-C during a call of the engine until it can be handled safely.

An engine in this process runs its scheduler here. An engine in other processes gets messages of several frames, and
half a message would garble the next one. Therefore KeyboardInterrupt must not be raised at an arbitrary line.
"""

from __future__ import annotations

import _thread
import inspect
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeAlias

Handler: TypeAlias = Callable[[int, FrameType | None], Any]


class Interrupts:
    """Guard that delays a Ctrl-C during a call of the engine, until the Ctrl-C can be handled safely.

    A second Ctrl-C is handled at once.
    """

    def __init__(self) -> None:
        self._before: Handler | None = None
        """SIGINT handler that `delayed` has replaced, or None outside of `delayed`."""
        self._wake: Callable[[], object]
        self._came = False

    @contextmanager
    def delayed(self, wake: Callable[[], object]) -> Iterator[None]:
        """Delay a Ctrl-C until the ``with`` block ends or calls `deliver`.

        When a Ctrl-C comes, ``wake`` is called in a new thread, to end a wait inside the block early. Only the main
        thread gets a Ctrl-C, so that the function does nothing in other threads.
        """
        inside = self._before is not None or threading.current_thread() is not threading.main_thread()
        before = None if inside else signal.getsignal(signal.SIGINT)
        if not callable(before):
            yield
            return
        self._before, self._wake, self._came = before, wake, False
        try:
            signal.signal(signal.SIGINT, self._note)
            yield
        finally:
            self._before = None  # from here on `_note` raises nothing, so that the handler is restored
            signal.signal(signal.SIGINT, before)
            if self._came:
                before(signal.SIGINT, inspect.currentframe())

    def deliver(self, frame: FrameType | None = None) -> None:
        """Call the original SIGINT handler if a Ctrl-C was delayed. Python's own handler raises KeyboardInterrupt."""
        if self._came and self._before is not None:
            self._came = False
            self._before(signal.SIGINT, frame or inspect.currentframe())

    def _note(self, _signum: int, frame: FrameType | None) -> None:
        if self._came:
            self.deliver(frame)
            return
        self._came = True
        if self._before is None:
            return
        try:
            # The waker takes locks that the interrupted code may hold. So does ``threading.Thread.start``.
            _thread.start_new_thread(self._wake, ())
        except RuntimeError:  # the system cannot start another thread
            self.deliver(frame)
