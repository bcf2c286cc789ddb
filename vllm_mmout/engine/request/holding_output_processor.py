"""HoldingOutputProcessor, which holds results of ended requests back until they are decoded."""

from __future__ import annotations

from collections import deque
from collections.abc import Sized
from threading import Condition, RLock
from typing import Any

from vllm.v1.engine.output_processor import OutputProcessor

_WAIT_S = 1.0
"""Seconds of one wait. Python handles a signal that comes just before a wait only when the wait ends."""


class HoldingOutputProcessor(OutputProcessor):
    """Output processor that counts a request as unfinished until its decoded result is fetched."""

    pending: Sized
    """Outputs that are being decoded or wait for it."""
    ready: deque[Any]
    """Decoded results that ``LLM`` has not fetched. Results of an ``AsyncLLM`` go to its queues instead."""
    lock: RLock
    """Lock of the fields that several threads change. It is written in C, so that an interrupt cannot leave it held."""
    wakeup: Condition
    """Condition that wakes `wait_ready`."""
    poked: bool = False
    """Whether `poke` was called since the last `wait_ready`."""

    def begin_holding(self) -> None:
        """Set up the fields of this class. Must be called once, before the first request."""
        self.ready = deque()
        self.lock = RLock()
        self.wakeup = Condition(self.lock)

    def take_ready(self) -> list[Any]:
        """Return the results that were decoded since the last call. Used by ``LLM``."""
        with self.lock:
            ready = list(self.ready)
            self.ready.clear()
        return ready

    def wait_ready(self) -> list[Any]:
        """Wait for a pending decode or a `poke`, and return the decoded results. Used by ``LLM``."""
        with self.lock:
            while self.pending and not self.ready and not self.poked:
                self.wakeup.wait(_WAIT_S)
            self.poked = False
        return self.take_ready()

    def poke(self) -> None:
        """Wake `wait_ready` even if no result is ready. May be called from any thread."""
        with self.lock:
            self.poked = True
            self.wakeup.notify_all()

    @property
    def holds_the_rest(self) -> bool:
        """Whether the engine has finished all requests, but results are still being decoded or wait to be fetched."""
        with self.lock:
            return not self.request_states and bool(self.pending or self.ready)

    def get_num_unfinished_requests(self) -> int:
        """Return the number of requests in the engine, being decoded, or decoded and not fetched."""
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
        """Return whether any request is in the engine, being decoded, or decoded and not fetched."""
        return self.get_num_unfinished_requests() > 0
