"""Run a plugin's code in threads, with a time limit for each call."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

from vllm_mmout.engine.scene.lane import StoppedError

Result = TypeVar("Result")


class HangingError(Exception):
    """Raised when a call takes longer than its time limit."""


class TimeLimitedCalls:
    """Runner of calls with a time limit. A call that exceeds the limit keeps running, but its result is discarded.

    Args:
        limit_s: time limit of each call, in seconds.
        at_end: a function that is called once, when the runner is closed and no call runs any more.

    """

    def __init__(self, limit_s: float, at_end: Callable[[], None]) -> None:
        self._limit_s = limit_s
        self._at_end = at_end
        self._lock = threading.Lock()
        self._waiting: set[queue.SimpleQueue[Any]] = set()
        self._running = 0
        self._stopped = False
        self._closed = False

    def run(self, call: Callable[[], Result]) -> Result:
        """Run a function in a new thread, and return its result. Raise HangingError if it exceeds the time limit."""
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with self._lock:
            if self._stopped:
                raise StoppedError
            self._waiting.add(answer)
            self._running += 1
        try:
            thread = threading.Thread(target=self._work, args=(call, answer), name="mmout-io-plugin", daemon=True)
            try:
                thread.start()
            except BaseException:
                self._left()
                raise
            result, error = answer.get(timeout=self._limit_s)
        except queue.Empty:
            raise HangingError(f"it took longer than the limit of {self._limit_s:g} s") from None
        finally:
            with self._lock:
                self._waiting.discard(answer)
        if error is not None:
            raise error
        return cast("Result", result)

    def stop(self) -> None:
        """Make each waiting `run` raise StoppedError. May be called more than once, and from any thread."""
        with self._lock:
            self._stopped = True
            for answer in self._waiting:
                answer.put((None, StoppedError()))

    def close(self) -> None:
        """Make all waiting `run` calls raise StoppedError. Call the function ``at_end`` after the last thread ends."""
        self.stop()
        with self._lock:
            ends = not self._closed and not self._running
            self._closed = True
        if ends:
            self._at_end()

    def _work(self, call: Callable[[], Any], answer: queue.SimpleQueue[Any]) -> None:
        try:
            answer.put((call(), None))
        except BaseException as error:  # noqa: BLE001 - a SystemExit, too, is an error of its request only
            answer.put((None, error))
        finally:
            self._left()

    def _left(self) -> None:
        with self._lock:
            self._running -= 1
            ends = self._closed and not self._running
        if ends:
            self._at_end()
