"""What ``LLM`` asks of an engine whose results are delivered after the engine is done with them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sized
from threading import Condition, RLock
from typing import Any

from vllm.v1.engine.output_processor import OutputProcessor


class HoldingOutputProcessor(OutputProcessor):
    """An output processor that holds results back, and counts them as unfinished until they are fetched."""

    pending: Sized
    ready: deque[Any]
    """Delivered results that ``LLM`` has not fetched (``AsyncLLM`` gets them through its queues)."""
    lock: RLock
    """Held around what the decode threads and the caller's both change. A lock of C: no interrupt leaves it held."""
    wakeup: Condition
    poked: bool = False

    def begin_holding(self) -> None:
        """Make what this class keeps; called once, when the engine is bound."""
        self.ready = deque()
        self.lock = RLock()
        self.wakeup = Condition(self.lock)

    def take_ready(self) -> list[Any]:
        """Results decoded since the last call, for ``LLM``."""
        with self.lock:
            ready = list(self.ready)
            self.ready.clear()
        return ready

    def wait_ready(self) -> list[Any]:
        """Wait until a pending decode is delivered, for ``LLM``; at once if nothing is pending, or when poked."""
        with self.lock:
            while self.pending and not self.ready and not self.poked:
                self.wakeup.wait()
            self.poked = False
        return self.take_ready()

    def poke(self) -> None:
        """Let `wait_ready` come back though nothing is ready; callable from any thread."""
        with self.lock:
            self.poked = True
            self.wakeup.notify_all()

    @property
    def holds_the_rest(self) -> bool:
        """Whether the engine has no request left, while results are being decoded or wait to be fetched."""
        with self.lock:
            return not self.request_states and bool(self.pending or self.ready)

    def get_num_unfinished_requests(self) -> int:
        """Requests in the engine, being decoded, or decoded and not fetched."""
        with self.lock:  # a decode thread moves what is pending to what is ready
            return len(self.request_states) + len(self.pending) + len(self.ready)

    def delivered(self) -> None:
        """Have vLLM count its requests anew, where it limits their number over several API servers.

        It counts when a request leaves the engine; those that are held leave later.
        """
        count = getattr(self, "_update_admission_stats", None)  # releases before have no such limit
        if count is not None:
            count()

    def has_unfinished_requests(self) -> bool:
        """Whether any request is not delivered."""
        return self.get_num_unfinished_requests() > 0
