"""The tiles that wait, and the seconds that they take."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from vllm_mmout.engine.observer import Observer
from vllm_mmout.engine.scene import backlog as backlog_module
from vllm_mmout.engine.scene.backlog import MEMORY_S, Backlog


@dataclass(eq=False)
class One:
    """Stands for a request of some tiles."""

    total: int = 1
    done: int = 0


class Told(Observer):
    """Keeps what was said last."""

    tiles, seconds = 0, 0.0

    def backlog(self, tiles, seconds):
        self.tiles, self.seconds = tiles, seconds


@pytest.fixture
def clock(monkeypatch):
    """Tells the time: a list of one number."""
    now = [100.0]
    monkeypatch.setattr(backlog_module.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def backlog(clock):
    """An empty one that says what it counts."""
    return Backlog(Told())


def works(backlog, clock, request, tiles, seconds):
    """Some tiles of a request are done, one after the other."""
    for _ in range(tiles):
        clock[0] += seconds / tiles
        request.done += 1
        backlog.look()


def test_tiles_count_until_they_are_done(backlog, clock):
    """Those of several requests together; seconds are unknown until one is done, and those of the clock then."""
    scene = One(100)
    with ExitStack() as held:
        held.enter_context(backlog.holding(scene))
        with backlog.holding(single := One()):
            assert (backlog.observer.tiles, backlog.observer.seconds) == (101, 0.0)
            clock[0] += 0.5
            single.done = 1
        assert backlog.observer.tiles == 100
        assert backlog.observer.seconds == pytest.approx(50)
        works(backlog, clock, scene, 50, seconds=5)
        assert backlog.observer.tiles == 50
        assert backlog.observer.seconds == pytest.approx(50 * 5.5 / 51, rel=0.1)
    assert (backlog.observer.tiles, backlog.observer.seconds) == (0, 0)


def test_what_is_measured_is_forgotten(backlog, clock):
    """After a change of speed the estimate follows within some half minutes."""
    scene = One(10_000)
    with backlog.holding(scene):
        works(backlog, clock, scene, 1000, seconds=100)
        assert backlog.observer.seconds == pytest.approx(9000 * 0.1, rel=0.01)
        works(backlog, clock, scene, 10, seconds=MEMORY_S)
        worked, done = MEMORY_S + MEMORY_S / math.e, 10 + 10 * MEMORY_S / math.e
        assert backlog.observer.seconds == pytest.approx(8990 * worked / done, rel=0.25)
        works(backlog, clock, scene, 100, seconds=10 * MEMORY_S)
        assert backlog.observer.seconds == pytest.approx(8890 * MEMORY_S / 10, rel=0.1)


def test_time_without_work_does_not_count(backlog, clock):
    """A night without requests makes the next one no slower."""
    with backlog.holding(first := One(2)):
        works(backlog, clock, first, 2, seconds=1)
    clock[0] += 40_000
    with backlog.holding(One(10)):
        assert backlog.observer.seconds == pytest.approx(5)


def test_what_was_aborted_is_not_waited_for(backlog, clock):
    """And was not done: it says nothing of the speed, but for its time."""
    with backlog.holding(first := One(4)):
        works(backlog, clock, first, 1, seconds=1)
    assert backlog.observer.tiles == 0
    with backlog.holding(One(10)):
        assert backlog.observer.seconds == pytest.approx(10)


def test_an_input_that_becomes_tiles_counts_once(backlog, clock):
    """As one until it is opened, then as its tiles."""
    with backlog.holding(one := One()):
        assert backlog.observer.tiles == 1
        one.total = 0
        with backlog.holding(One(12)):
            assert backlog.observer.tiles == 12
