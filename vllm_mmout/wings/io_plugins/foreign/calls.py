"""Calls: one request's calls of somebody else's code, each in a thread of its own and within a time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

from vllm_mmout.engine.parts.parts_request import StoppedError

Result = TypeVar("Result")


class HangingError(Exception):
    """A call took longer than it may."""


class Calls:
    """Calls what may hang; a call that nobody waits for any more goes on by itself, and its result is thrown away."""

    def __init__(self, limit_s: float, at_end: Callable[[], None]) -> None:
        self._limit_s = limit_s
        self._at_end = at_end
        self._lock = threading.Lock()
        self._waiting: set[queue.SimpleQueue[Any]] = set()
        self._running = 0
        self._stopped = False
        self._closed = False

    def run(self, call: Callable[[], Result]) -> Result:
        """Call, and wait for the result."""
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
        """Let whoever waits go, any number of times; from any thread."""
        with self._lock:
            self._stopped = True
            for answer in self._waiting:
                answer.put((None, StoppedError()))

    def close(self) -> None:
        """Say that the request has ended."""
        self.stop()
        with self._lock:
            ends = not self._closed and not self._running
            self._closed = True
        if ends:
            self._at_end()

    def _work(self, call: Callable[[], Any], answer: queue.SimpleQueue[Any]) -> None:
        try:
            answer.put((call(), None))
        except BaseException as error:  # noqa: BLE001 - a SystemExit too is its request's
            answer.put((None, error))
        finally:
            self._left()

    def _left(self) -> None:
        with self._lock:
            self._running -= 1
            ends = self._closed and not self._running
        if ends:
            self._at_end()
