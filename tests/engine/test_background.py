"""Threads that read and write give way to an engine on the same processors."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from vllm_mmout.engine.threads import giving_way

pytestmark = pytest.mark.engine


@pytest.mark.skipif(sys.platform != "linux", reason="other systems set the priority per process, not per thread")
def test_a_thread_and_those_that_it_starts_give_way():
    """Their priority is lower than that of the thread that started them, which keeps its own."""
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    seen = []

    def look() -> None:
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    def work() -> None:
        look()
        child = threading.Thread(target=look)
        child.start()
        child.join()

    thread = threading.Thread(target=giving_way(work))
    thread.start()
    thread.join()
    assert seen == [min(before + 10, 19)] * 2
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
