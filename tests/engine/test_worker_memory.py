"""A worker on a CPU keeps memory for its next step, a server for its next tile; other processes stay as they are."""

from __future__ import annotations

import multiprocessing
import resource
import threading

import numpy as np
import pytest
import torch

from vllm_mmout.engine.memory import keep_freed_blocks, keep_freed_memory

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
    monkeypatch.setattr("vllm_mmout.engine.memory.ctypes.CDLL", lambda _: pytest.fail("called"))
    keep_freed_memory()


def _faults_of_tiles(kept: bool) -> int:  # noqa: FBT001 - called through a pool
    """Pages that the system has to clear for some tiles of 3 MB, in a thread as those that read them."""
    if kept:
        keep_freed_blocks()
    found = []

    def read():
        for _ in range(4):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            tiles = [np.ones(3 << 20, np.uint8) for _ in range(4)]
            tiles.clear()
            found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    return min(found)


def test_the_next_tile_gets_memory_that_is_there():
    """In a server that has set it up, blocks of a tile come from those of the one before."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        if pool.apply(_faults_of_tiles, (False,)) < 8:
            pytest.skip("this C library keeps freed memory by itself")
        assert pool.apply(_faults_of_tiles, (True,)) < 8
