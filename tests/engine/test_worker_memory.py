"""A worker on a CPU keeps memory for its next step; other processes stay as they are."""

from __future__ import annotations

import multiprocessing
import resource

import pytest
import torch

from vllm_mmout.engine.worker.bound import keep_freed_memory

pytestmark = pytest.mark.engine
PIXELS = 16 << 20
"""Of float32: 64 MiB, 16384 pages."""
PAGES = PIXELS * 4 // resource.getpagesize()


LATE = 9
"""Steps that are looked at: the heap may have to grow in one of them, where something small lies in the way."""


def _faults_of_a_late_step(*, kept: bool) -> int:
    """Pages that the system has to clear for a step after some others, the median, in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_late_step, (kept,))


def _late_step(kept: bool) -> int:  # noqa: FBT001 - called through a pool
    if kept:
        keep_freed_memory()
    for _ in range(4):  # where the first ones come to lie, their alignment decides
        torch.ones(PIXELS).sum()
    found = []
    for _ in range(LATE):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(PIXELS).sum()
        found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return sorted(found)[LATE // 2]


@pytest.mark.slow
def test_the_next_step_gets_memory_that_is_there():
    """Without it, every page is cleared again (transparent huge pages make that fewer, larger ones)."""
    if _faults_of_a_late_step(kept=False) < PAGES / 1024:
        pytest.skip("this C library keeps freed memory by itself")
    assert _faults_of_a_late_step(kept=True) < 8


def test_the_users_own_process_is_left_alone(monkeypatch):
    """An engine in the user's process does not decide what that process does with its memory."""
    monkeypatch.setattr("vllm_mmout.engine.worker.bound.ctypes.CDLL", lambda _: pytest.fail("called"))
    keep_freed_memory()
