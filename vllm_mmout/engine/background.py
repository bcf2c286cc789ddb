"""Threads that give way: without a GPU, who reads and writes must not take the processor from who computes."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import wraps

_NICE = 10
_LOWEST = 19


def background_thread(work: Callable[[], None], name: str) -> threading.Thread:
    """Make a daemon thread that gives way, as ``giving_way`` says; the caller starts it."""
    return threading.Thread(target=giving_way(work), name=f"mmout-{name}", daemon=True)


def giving_way(work: Callable[[], None]) -> Callable[[], None]:
    """Let the thread that runs ``work``, and those that it starts, give way to an engine on the same processors.

    An engine's worker is bound to some processors, this process to none: when it has more to do than the others can
    take, the system would let it wait and the worker wait alike. On a GPU nothing changes.
    """

    @wraps(work)
    def run() -> None:
        from vllm.platforms import current_platform

        if sys.platform == "linux" and current_platform.is_cpu():  # elsewhere the whole process would give way
            thread = threading.get_native_id()
            now = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, min(now + _NICE, _LOWEST))
        work()

    return run
