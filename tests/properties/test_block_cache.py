"""Bytes read through a cache of blocks are those of the file, whatever is read, in whatever order."""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.remote.block_cache import BlockCache

DATA = bytes(number * 37 % 251 for number in range(1000))
SIZES = st.integers(1, 200)
READS = st.lists(st.tuples(st.integers(0, 1100), st.integers(0, 1100)), max_size=30)


@given(
    size=st.integers(0, len(DATA)),
    block=SIZES,
    capacity=SIZES,
    at_once=SIZES,
    ahead=SIZES,
    known=st.integers(0, 300),
    reads=READS,
)
def test_reads_are_slices(size, block, capacity, at_once, ahead, known, reads):
    """Any sequence of reads equals slices; requests lie within the file and are no longer than allowed."""
    data = DATA[:size]
    asked = []

    def fetch(start, stop):
        asked.append((start, stop))
        return data[start:stop]

    cache = BlockCache(fetch, size, block=block, capacity=capacity, at_once=at_once, ahead=ahead)
    cache.put(data[:known])
    for at, count in reads:
        assert cache.view_at(at, count) == data[at : at + count]
    assert all(0 <= start < stop <= size for start, stop in asked)
    assert all(stop - start <= max(at_once, block) for start, stop in asked)
    assert all(start % block == 0 for start, _ in asked)


@given(block=SIZES, ahead=SIZES, reads=READS)
def test_with_room_for_all_nothing_is_fetched_twice(block, ahead, reads):
    """By four threads."""
    asked = []

    def fetch(start, stop):
        asked.extend(range(start, stop))
        return DATA[start:stop]

    cache = BlockCache(fetch, len(DATA), block=block, capacity=2 * len(DATA) + block, at_once=300, ahead=ahead)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda read: cache.view_at(*read), reads))
    assert found == [DATA[at : at + count] for at, count in reads]
    assert len(asked) == len(set(asked))


@given(
    reads=READS,
    faults=st.lists(st.sampled_from([None, InputError, KeyboardInterrupt]), max_size=10),
    block=SIZES,
    threads=st.sampled_from([1, 4]),
)
def test_what_failed_is_fetched_when_it_is_asked_for_again(reads, faults, block, threads):
    """A fault is raised where it happened, or where another thread waited for it, and nothing hangs or is wrong."""
    pending = list(faults)

    def fetch(start, stop):
        fault = pending.pop() if pending else None
        if fault is not None:
            raise fault("a fault")
        return DATA[start:stop]

    cache = BlockCache(fetch, len(DATA), block=block, capacity=300)

    def read(place):
        try:
            return cache.view_at(*place)
        except (InputError, KeyboardInterrupt):
            return None

    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(read, reads))
    assert all(got in (None, DATA[at : at + count]) for got, (at, count) in zip(found, reads, strict=True))
    pending.clear()
    assert [cache.view_at(*place) for place in reads] == [DATA[at : at + count] for at, count in reads]


def test_what_one_request_brought_is_not_copied():
    """A view is of the very bytes that were fetched."""
    brought = []

    def fetch(start, stop):
        brought.append(DATA[start:stop])
        return brought[-1]

    cache = BlockCache(fetch, len(DATA), block=100)
    assert cache.view_at(120, 300).obj is brought[0]
    assert cache.view_at(250, 10).obj is brought[0]


def test_a_place_before_the_file():
    """Is refused, as files do."""
    with pytest.raises(ValueError, match="negative offset -1"):
        BlockCache(lambda start, stop: DATA[start:stop], len(DATA)).view_at(-1, 3)


@pytest.mark.parametrize("fault", [InputError, KeyboardInterrupt])
def test_a_thread_whose_block_another_one_fails_to_fetch(fault):
    """It gets an error of its input as its own; where the other one was interrupted, it fetches the block itself."""
    begun, fail = threading.Event(), threading.Event()

    def fetch(start, stop):
        if begun.is_set():
            return DATA[start:stop]
        begun.set()
        fail.wait(30)
        raise fault("a fault")

    def waits():
        run = cache._runs[0]
        run.done = Watched(run.done, fail)
        return cache.view_at(0, 10)

    cache = BlockCache(fetch, len(DATA), block=100)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.view_at, 0, 10)
        begun.wait(30)
        second = pool.submit(waits)
        with pytest.raises(fault):
            first.result(30)
        if fault is InputError:
            with pytest.raises(InputError, match="a fault"):
                second.result(30)
        else:
            assert second.result(30) == DATA[:10]


@dataclasses.dataclass
class Watched:
    """A future that says when it is waited for."""

    future: Future
    waited_for: threading.Event

    def result(self):
        self.waited_for.set()
        return self.future.result(30)

    def __getattr__(self, name):
        return getattr(self.future, name)
