"""Corners that wait: in memory, on disk, and gone when they are taken."""

from __future__ import annotations

import tempfile

import numpy as np
import pytest

from vllm_mmout.errors import SaveError
from vllm_mmout.geo.vectors.corner_store import WaitingCorners

CHUNK = 2**18
"""Bytes of a chunk."""


def corners(rng, count):
    """Some corners."""
    return rng.integers(-(2**31), 2**31, (count, 2), dtype=np.int32)


@pytest.mark.parametrize("budget", [1, 3 * CHUNK, 2**30])
def test_corners_come_back(budget, tmp_path):
    """In any order, whole or in parts, beyond the budget and within it."""
    rng = np.random.default_rng(1)
    there = {}
    with WaitingCorners(budget, tmp_path) as waiting:
        for _ in range(300):
            rows = corners(rng, int(rng.integers(0, 5000)))
            there[waiting.put(rows) if len(rows) else -1] = rows
            for address in rng.choice(list(there), 1 if rng.random() < 0.9 else 0).tolist():
                rows = there.pop(address)
                half = len(rows) // 2
                np.testing.assert_array_equal(waiting.take(address, half), rows[:half])
                np.testing.assert_array_equal(waiting.take(address + half, len(rows) - half), rows[half:])
        assert len(waiting._memory) * CHUNK <= max(budget, CHUNK)
        assert bool(waiting._file_positions) == (budget < 2**30)
    assert list(tmp_path.iterdir()) == []


def test_room_is_used_again(tmp_path):
    """What was taken leaves room, in memory and on disk."""
    rng = np.random.default_rng(2)
    rows = corners(rng, 10_000)
    with WaitingCorners(CHUNK, tmp_path) as waiting:
        for _ in range(200):
            np.testing.assert_array_equal(waiting.take(waiting.put(rows), len(rows)), rows)
        assert len(waiting._file_positions) + len(waiting._free) <= 2
        assert len(waiting._memory) <= 1


def test_a_full_disk_says_so(tmp_path):
    """The folder that cannot be written to is named."""
    with WaitingCorners(1, tmp_path / "gone") as waiting, pytest.raises(SaveError, match=r"make room in .*gone$"):
        waiting.put(np.zeros((2**17, 2), np.int32))


def test_another_folder_helps_where_none_was_given(monkeypatch):
    """That for temporary files can be moved."""
    monkeypatch.setattr(tempfile, "tempdir", "/gone")
    with WaitingCorners(1) as waiting, pytest.raises(SaveError, match=r"make room in /gone, or set TMPDIR$"):
        waiting.put(np.zeros((2**17, 2), np.int32))
