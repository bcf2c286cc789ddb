"""Output processor for vLLM that counts a request as unfinished until its result is decoded and fetched."""

from __future__ import annotations

from collections import deque
from collections.abc import Sized
from threading import Condition, RLock
from typing import Any

from vllm.v1.engine.output_processor import OutputProcessor

_WAIT_S = 1.0
"""Longest time in seconds to block at a time while waiting for a result, so that a Ctrl-C is handled soon."""


class HoldingOutputProcessor(OutputProcessor):
    """vLLM's output processor, which counts a request as unfinished until its decoded result is fetched."""

    pending: Sized
    """Outputs that the engine has computed, and that are not decoded yet."""
    ready: deque[Any]
    """Decoded results that ``LLM`` has not fetched. Results of an ``AsyncLLM`` go to its queues instead."""
    lock: RLock
    """Lock for the attributes that several threads change.

    An `RLock` is written in C. Therefore a Ctrl-C cannot leave the lock held.
    """
    wakeup: Condition
    """Condition variable that is notified when a result is decoded or `poke` is called."""
    poked: bool = False
    """Whether `poke` has been called since `wait_ready` last returned. If so, `wait_ready` returns at once."""

    def begin_holding(self) -> None:
        """Initialize the attributes that this class adds to vLLM's class. Called once, before the first request."""
        self.ready = deque()
        self.lock = RLock()
        self.wakeup = Condition(self.lock)

    def take_ready(self) -> list[Any]:
        """Remove and return the decoded results that wait for vLLM's ``LLM`` class."""
        with self.lock:
            ready = list(self.ready)
            self.ready.clear()
        return ready

    def wait_ready(self) -> list[Any]:
        """Block until a result is decoded or `poke` is called. Return all decoded results, for vLLM's ``LLM`` class."""
        with self.lock:
            while self.pending and not self.ready and not self.poked:
                self.wakeup.wait(_WAIT_S)
            self.poked = False
        return self.take_ready()

    def poke(self) -> None:
        """Make a blocked `wait_ready` return, even if no result is ready. May be called from any thread."""
        with self.lock:
            self.poked = True
            self.wakeup.notify_all()

    @property
    def has_only_results_left(self) -> bool:
        """Whether the engine has finished all requests, but some results are not yet decoded or not yet fetched."""
        with self.lock:
            return not self.request_states and bool(self.pending or self.ready)

    def get_num_unfinished_requests(self) -> int:
        """Return the number of requests whose result was not fetched yet.

        Their results are still in the engine, being decoded, or ready to be fetched.
        """
        with self.lock:  # a decode thread moves requests from pending to ready
            return len(self.request_states) + len(self.pending) + len(self.ready)

    def delivered(self) -> None:
        """Update vLLM's count of unfinished requests, after a result was delivered.

        vLLM itself updates the count when a request leaves the engine, but then its result may not be decoded yet. The
        limit on requests of several API servers depends on the count.
        """
        count = getattr(self, "_update_admission_stats", None)  # older vLLM releases lack this limit
        if count is not None:
            count()

    def has_unfinished_requests(self) -> bool:
        """Return whether the result of any request is not fetched yet."""
        return self.get_num_unfinished_requests() > 0
