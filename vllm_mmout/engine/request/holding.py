"""HoldingOutputProcessor: holds results back after the engine has ended their requests, until they are decoded."""

from __future__ import annotations

from collections import deque
from collections.abc import Sized
from threading import Condition, RLock
from typing import Any

from vllm.v1.engine.output_processor import OutputProcessor


class HoldingOutputProcessor(OutputProcessor):
    """An output processor that counts a request as unfinished until its decoded result is fetched."""

    pending: Sized
    ready: deque[Any]
    """Delivered results that ``LLM`` has not fetched (``AsyncLLM`` gets them through its queues)."""
    lock: RLock
    """Guards the fields that several threads change. It is written in C, so that an interrupt cannot leave it held."""
    wakeup: Condition
    poked: bool = False

    def begin_holding(self) -> None:
        """Set up the fields of this class; called once, when the engine is bound."""
        self.ready = deque()
        self.lock = RLock()
        self.wakeup = Condition(self.lock)

    def take_ready(self) -> list[Any]:
        """Return the results decoded since the last call, for ``LLM``."""
        with self.lock:
            ready = list(self.ready)
            self.ready.clear()
        return ready

    def wait_ready(self) -> list[Any]:
        """Wait for a pending decode or a `poke`, and return the decoded results, for ``LLM``."""
        with self.lock:
            while self.pending and not self.ready and not self.poked:
                self.wakeup.wait()
            self.poked = False
        return self.take_ready()

    def poke(self) -> None:
        """Wake `wait_ready` before a result is ready. Callable from any thread."""
        with self.lock:
            self.poked = True
            self.wakeup.notify_all()

    @property
    def holds_the_rest(self) -> bool:
        """Whether the engine has ended all requests, while results are being decoded or wait to be fetched."""
        with self.lock:
            return not self.request_states and bool(self.pending or self.ready)

    def get_num_unfinished_requests(self) -> int:
        """Return the number of requests in the engine, being decoded, or decoded and not fetched."""
        with self.lock:  # a decode thread moves requests from pending to ready
            return len(self.request_states) + len(self.pending) + len(self.ready)

    def delivered(self) -> None:
        """Have vLLM count its requests again, if it limits their number over several API servers.

        vLLM counts when a request leaves the engine, and requests held here leave later.
        """
        count = getattr(self, "_update_admission_stats", None)  # older releases lack this limit
        if count is not None:
            count()

    def has_unfinished_requests(self) -> bool:
        """Return whether any request is not delivered."""
        return self.get_num_unfinished_requests() > 0
