"""TileBudget: tiles in flight are bounded, and scenes take turns."""

from __future__ import annotations

import threading
import time

import pytest

from vllm_mmout.engine.scene.budgets import TileBudget

DEADLINE = 120
"""Seconds that no step of these tests takes, on whatever machine."""


def never():
    """Of a scene that is not stopped."""
    return False


def until(condition, what):
    """Wait for a condition."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.001)


class Taker(threading.Thread):
    """A scene that takes one place after the other, and says so in a list."""

    def __init__(self, budget, taken, name, times=1, nbytes=1, stopped=never):
        super().__init__(daemon=True)
        self.budget, self.taken, self.times, self.nbytes, self.stopped = budget, taken, times, nbytes, stopped
        self.label, self.answers = name, []
        self.start()

    def run(self):
        for _ in range(self.times):
            self.answers.append(self.budget.take(self.nbytes, self.stopped))
            self.taken.append(self.label)

    def waits(self, place):
        """Wait until it stands in the queue, at a place."""
        until(lambda: len(self.budget._turns) > place, f"{self.label} waits")
        return self


@pytest.mark.parametrize(("count", "nbytes", "fitting"), [(3, 100, 3), (100, 35, 3), (100, 30, 3), (100, 29, 2)])
def test_it_admits_as_many_as_count_and_bytes_let(count, nbytes, fitting):
    """The next one waits, until one gives its place back."""
    budget, taken = TileBudget(count, nbytes), []
    taker = Taker(budget, taken, "a", times=fitting + 1, nbytes=10).waits(0)
    until(lambda: len(taken) == fitting, "they fit")
    time.sleep(0.05)
    assert (len(taken), budget.used_count, budget.used_bytes) == (fitting, fitting, 10 * fitting)
    budget.give(10)
    taker.join(DEADLINE)
    assert (len(taken), budget.used_count) == (fitting + 1, fitting)
    budget.give(10, fitting)
    assert (budget.used_count, budget.used_bytes, len(budget._turns)) == (0, 0, 0)


def test_a_tile_larger_than_the_budget_goes_alone():
    """It waits until nothing else is in flight, and nothing overtakes it."""
    budget, taken = TileBudget(10, 100), []
    assert budget.take(40, never)
    Taker(budget, taken, "large", nbytes=1000).waits(0)
    small = Taker(budget, taken, "small", nbytes=1).waits(1)
    time.sleep(0.05)
    assert taken == []
    budget.give(40)
    until(lambda: taken == ["large"], "the large one is alone")
    budget.give(1000)
    small.join(DEADLINE)
    assert taken == ["large", "small"]


def test_scenes_take_turns():
    """Two scenes that both want all they can get are served one tile each."""
    budget, taken = TileBudget(1, 1000), []
    assert budget.take(1, never)
    takers = [Taker(budget, taken, name, times=20).waits(place) for place, name in enumerate("ab")]
    for number in range(40):
        until(lambda number=number: len(budget._turns) == 2 or number > 37, "both wait")
        budget.give(1)
        until(lambda number=number: len(taken) == number + 1, "one is served")
    for taker in takers:
        taker.join(DEADLINE)
    assert taken == ["a", "b"] * 20


def test_a_scene_that_is_stopped_takes_nothing_and_blocks_nobody():
    """The first in the queue is stopped: it gets no place, and the next one gets what there is for it."""
    budget, taken = TileBudget(10, 100), []
    assert budget.take(60, never)
    stopped = threading.Event()
    first = Taker(budget, taken, "first", nbytes=60, stopped=stopped.is_set).waits(0)
    second = Taker(budget, taken, "second", nbytes=40).waits(1)
    time.sleep(0.02)
    assert taken == []
    stopped.set()
    budget.wake()
    first.join(DEADLINE)
    second.join(DEADLINE)
    assert (first.answers, second.answers) == ([False], [True])
    assert (budget.used_count, budget.used_bytes) == (2, 100)


def test_one_that_is_stopped_before_it_asks():
    """It gets no place, though there is one."""
    budget = TileBudget(10, 100)
    assert not budget.take(1, lambda: True)
    assert (budget.used_count, budget.used_bytes, len(budget._turns)) == (0, 0, 0)
