"""Gathering: tiles are held until they fill a step, and never longer than they need to be."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from vllm_mmout.engine.scene import schedule as gathering
from vllm_mmout.engine.scene.budgets import TileBudget
from vllm_mmout.engine.scene.schedule import Gathering

pytestmark = pytest.mark.engine


@dataclass(eq=False)
class Source:
    """Stands for a scene and its fan-out: has some tiles ready, and may have more."""

    ready: list = field(default_factory=list)
    reading: bool = True
    stopped: bool = False
    nbytes: int = 10

    def take(self):
        ready, self.ready = self.ready, []
        return ready


@pytest.fixture
def clock(monkeypatch):
    """Tells the time: a list of one number."""
    now = [100.0]
    monkeypatch.setattr(gathering.time, "monotonic", lambda: now[0])
    return now


def gathered(*sources, size=4, count=8, nbytes=1000, engines=1):
    """A gathering of some sources."""
    found = Gathering(size, TileBudget(count, nbytes), engines)
    for source in sources:
        found.add(source)
    return found


def tiles(batches):
    """The tiles of batches, without what they are of."""
    return [[part for _, part in batch.parts] for batch in batches]


def test_tiles_are_held_until_they_fill_a_step(clock):
    """Three of four wait; the fourth lets all go, and a fifth waits again."""
    source = Source([1, 2, 3])
    found = gathered(source)
    assert tiles(found.batches()) == []
    assert found.waits
    source.ready = [4, 5]
    assert tiles(found.batches()) == [[1, 2, 3, 4]]
    assert tiles(found.batches()) == []
    assert found.waits


def test_what_is_left_goes_when_no_more_can_come(clock):
    """The end of a scene is no reason to wait."""
    source = Source([1, 2, 3, 4, 5, 6], reading=False)
    found = gathered(source)
    assert tiles(found.batches()) == [[1, 2, 3, 4], [5, 6]]
    assert not found.waits


def test_a_scene_that_reads_is_waited_for_by_the_others(clock):
    """Tiles of several scenes fill a step together."""
    first, second = Source([1, 2], reading=False), Source()
    found = gathered(first, second)
    assert tiles(found.batches()) == []
    second.ready = [3, 4]
    assert tiles(found.batches()) == [[1, 2, 3, 4]]


def test_a_slow_source_is_not_waited_for(clock):
    """After half a second what there is goes."""
    source = Source([1])
    found = gathered(source)
    assert tiles(found.batches()) == []
    clock[0] += gathering.PATIENCE_S * 0.9
    assert tiles(found.batches()) == []
    clock[0] += gathering.PATIENCE_S * 0.2
    assert tiles(found.batches()) == [[1]]
    source.ready = [2]
    assert tiles(found.batches()) == []  # its own time begins now


def test_a_batch_is_never_larger_than_the_budget(clock):
    """What cannot be in flight together is not waited for."""
    assert tiles(gathered(Source([1, 2]), count=2).batches()) == [[1, 2]]
    assert tiles(gathered(Source([1], nbytes=600)).batches()) == [[1]]
    assert tiles(gathered(Source([1], nbytes=5000)).batches()) == [[1]]
    assert tiles(gathered(Source([1], nbytes=250)).batches()) == []


def test_each_of_several_engines_has_its_part_of_the_budget(clock):
    """A batch leaves room for one of each other engine, and has one tile at least."""
    assert tiles(gathered(Source([1, 2, 3, 4]), engines=2).batches()) == [[1, 2, 3, 4]]
    assert tiles(gathered(Source([1, 2, 3, 4]), engines=4).batches()) == [[1, 2], [3, 4]]
    assert tiles(gathered(Source([1, 2]), count=2, engines=4).batches()) == [[1], [2]]


def test_tiles_of_scenes_that_ended_are_not_sent(clock):
    """Neither those of a removed scene nor of one that failed."""
    removed, stopped, left = Source([1, 2]), Source([3]), Source([4])
    found = gathered(removed, stopped, left)
    assert tiles(found.batches()) == [[1, 2, 3, 4]]
    removed.ready, stopped.ready, left.ready = [5], [6], [7]
    assert tiles(found.batches()) == []
    found.remove(removed)
    stopped.stopped, left.reading, stopped.reading = True, False, False
    assert tiles(found.batches()) == [[7]]


def test_each_batch_says_which_it_is_and_of_how_many(clock):
    """The engine's core counts by it."""
    first, second = gathered(Source([1, 2, 3, 4, 5, 6], reading=False)).batches()
    assert (first.mark[1], second.mark[1]) == (4, 2)
    assert first.mark[0] != second.mark[0]


def test_where_single_requests_come_batches_are_small(clock):
    """One small batch for each engine without work, so that a single request waits for a short step at most."""
    source = Source([1, 2, 3, 4, 5], reading=False)
    found = gathered(source, size=8, count=16)
    assert tiles(found.batches(idle=0)) == []
    assert found.waits
    assert tiles(found.batches(idle=2)) == [[1, 2], [3, 4]]
    assert tiles(found.batches(idle=1)) == [[5]]
    source.ready = [6, 7, 8]
    assert tiles(found.batches()) == [[6, 7, 8]]
    few = gathered(Source([1, 2]), size=2)
    assert tiles(few.batches(idle=1)) == [[1]]
