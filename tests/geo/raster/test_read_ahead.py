"""What the next windows need of a file that is far away is fetched before it is read, several parts at once."""

from __future__ import annotations

import io
import threading
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from gdal_files import RNG, UTM, tiff

from vllm_mmout.errors import InputError
from vllm_mmout.geo import Window, open_raster
from vllm_mmout.geo.raster import read_ahead, sequence
from vllm_mmout.geo.raster.files import ManyReadersFile
from vllm_mmout.geo.raster.remote.block_cache import BlockCache

ARRAY = RNG.integers(0, 4000, (3, 1024, 640)).astype("uint16")
AHEAD = 2**18


class Far(ManyReadersFile):
    """A file in memory that notes what it is asked for."""

    def __init__(self, data):
        self._file = io.BytesIO(data)
        self._lock = threading.Lock()
        self.name = "far.tif"
        self.fetched = []
        """Places and numbers of bytes."""
        self.reads = []
        """The same of what was read, and how much was fetched before."""
        self.seek, self.tell, self.read = self._file.seek, self._file.tell, self._file.read

    def seekable(self):
        return True

    def fetch(self, at, count):
        self.fetched.append((at, count))

    def read_at(self, at, count):
        with self._lock:
            self.reads.append((at, count, len(self.fetched)))
        return self._file.getvalue()[at : at + count]


@pytest.mark.parametrize("interleave", ["pixel", "band"])
def test_windows_are_fetched_ahead(interleave, tmp_path, monkeypatch) -> None:
    """What is read was asked for before, once, in good time and not too early."""
    monkeypatch.setattr(read_ahead, "_AHEAD", AHEAD)
    monkeypatch.setattr(sequence, "_TASKS_AHEAD", 1)
    layout = {"tiled": True, "blockxsize": 128, "blockysize": 128, "interleave": interleave}
    file = Far(tiff(tmp_path / "a.tif", ARRAY, **layout, **UTM).read_bytes())
    windows = [Window(row, col, 128, 128) for row in range(0, 1024, 128) for col in range(0, 640, 128)]

    def was_fetched(at, count, known):
        return any(start <= at and at + count <= start + size for start, size in file.fetched[:known])

    monkeypatch.setattr(read_ahead, "_TOGETHER", AHEAD // 4)
    on_their_way = AHEAD + AHEAD // 4 + (2 + sequence.THREADS) * 3 * 128 * 128 * 2
    with open_raster(file) as raster:
        file.reads.clear()
        for window, part in zip(windows, raster.windows(windows), strict=True):
            np.testing.assert_array_equal(part.array, ARRAY[:, window.rows, window.cols])
            read = sum(count for at, count, known in list(file.reads) if was_fetched(at, count, known))
            assert sum(count for _, count in file.fetched) - read <= on_their_way
    assert file.reads
    assert all(was_fetched(*read) for read in file.reads)
    spans = sorted(file.fetched)
    assert all(at + count <= after for (at, count), (after, _) in pairwise(spans))


def test_of_a_file_that_stores_next_to_nothing_not_all_is_looked_at(monkeypatch) -> None:
    """Where segments have no bytes, the number of turns bounds what is looked ahead."""
    looked, asked = [], []

    class Sparse:
        file = SimpleNamespace(fetch=lambda *part: asked.append(part))

        def stored(self, places):
            looked.append(places)
            return [(0, 0)]

    monkeypatch.setattr(read_ahead, "_TASKS", 10)
    ahead = read_ahead.ReadAhead(Sparse(), ([(0, 0, col)] for col in range(1000)))
    for turn in range(100):
        ahead.begin(turn)
        assert turn + 10 <= len(looked) <= turn + 30
    assert asked == []


def test_what_is_fetched_ahead_is_fetched_at_once() -> None:
    """Two parts meet in the function that fetches; a reader takes what they bring."""
    meeting = threading.Barrier(2, timeout=30)
    asked = []

    def fetch(start, stop):
        asked.append((start, stop))
        meeting.wait()
        return bytes(range(start, stop))

    blocks = BlockCache(fetch, 200, block=10, capacity=200, at_once=100, ahead=10)
    blocks.fetch(0, 40)
    blocks.fetch(100, 40)
    assert blocks.view_at(100, 40) == bytes(range(100, 140))
    assert blocks.view_at(5, 30) == bytes(range(5, 35))
    assert sorted(asked) == [(0, 40), (100, 140)]
    blocks.clear()
    blocks.fetch(180, 10)  # nobody waits for it


def test_what_is_fetched_ahead_outlives_what_was_read() -> None:
    """A window is read again and again until the next, whose bytes came long before."""
    asked, came = [], threading.Event()

    def fetch(start, stop):
        asked.append((start, stop))
        if start >= 100:
            came.set()
        return bytes(range(start, stop))

    blocks = BlockCache(fetch, 200, block=10, capacity=100, at_once=100, ahead=10)
    blocks.fetch(100, 50)
    assert came.wait(30)
    assert blocks.view_at(100, 10) == bytes(range(100, 110))  # all of the part has arrived then
    for at in range(0, 100, 10):
        for _ in range(3):
            assert blocks.view_at(at, 10) == bytes(range(at, at + 10))
    del asked[:]
    assert blocks.view_at(110, 40) == bytes(range(110, 150))
    assert asked == []
    assert blocks.view_at(150, 50) == bytes(range(150, 200))  # those that were read go first
    assert blocks.view_at(110, 40) == bytes(range(110, 150))
    blocks.clear()


def test_what_fails_ahead_fails_where_it_is_read() -> None:
    """It is tried again there, and says why."""
    tries = []

    def fetch(start, stop):
        tries.append((start, stop))
        raise InputError("a.tif: there is no such object")

    blocks = BlockCache(fetch, 200, block=10, capacity=200, at_once=100, ahead=10)
    blocks.fetch(0, 10)
    with pytest.raises(InputError, match="there is no such object"):
        blocks.view_at(0, 10)
    blocks.clear()
