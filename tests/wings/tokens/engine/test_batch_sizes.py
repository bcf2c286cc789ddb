"""How many media go together: what was seen to be faster, tried again now and then."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_mmout.wings.tokens.engine.batch_sizes import BatchSizes

SHAPE = "a shape"
LOOKS_AGAIN = 64
"""Forwards after which the slower kind is tried once more."""

LIMIT = 1e6
"""Seconds that no forward here takes."""

seconds = st.floats(1e-6, 100)


def run(sizes, cost, media, key=SHAPE):
    """The sizes of the forwards of so many media that are all ready."""
    forwards = []
    while media:
        count = sizes.size(key, media)
        forwards.append(count)
        sizes.record(key, count, cost(count))
        media -= count
    return forwards


def pays(count):
    """One forward costs the same, whatever is in it."""
    return 1.0


def does_not_pay(count):
    """A medium among others costs half as much again."""
    return 1.0 if count == 1 else 1.5 * count


@given(st.integers(1, 20), st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50), seconds), max_size=200))
def test_a_size_is_at_least_one_and_at_most_what_is_ready_and_allowed(most, asked):
    """Whatever forwards were seen to cost."""
    sizes = BatchSizes(most, LIMIT)
    for key, ready, cost in asked:
        count = sizes.size(key, ready)
        assert 1 <= count <= min(ready, most)
        sizes.record(key, count, cost)


@given(st.lists(st.tuples(st.integers(1, 50), seconds), min_size=LOOKS_AGAIN, max_size=2 * LOOKS_AGAIN + 10))
def test_asking_changes_nothing(asked):
    """The same question twice, with others between, has the same answer: only forwards that ran count."""
    sizes = BatchSizes(8, LIMIT)
    for ready, cost in asked:
        first = sizes.size(SHAPE, ready), sizes.waits(SHAPE)
        for other in (1, 2, 50):
            sizes.size(SHAPE, other)
            sizes.waits(SHAPE)
        assert (sizes.size(SHAPE, ready), sizes.waits(SHAPE)) == first
        sizes.record(SHAPE, first[0], cost)


@given(st.integers(2, 64), st.integers(1, 500))
def test_where_batches_pay_nearly_all_media_go_in_full_ones(most, media):
    """Two media are tried alone; the rest goes in batches as large as may be."""
    forwards = run(BatchSizes(most, LIMIT), pays, media)
    tried = media // most // LOOKS_AGAIN
    assert len(forwards) <= ceil(media / most) + 2 + tried
    assert sum(forwards) == media


@given(st.integers(2, 16), st.integers(1, 400))
def test_where_batches_do_not_pay_few_media_go_in_one(most, media):
    """Two batches at first, then one after every 64 forwards."""
    forwards = run(BatchSizes(most, LIMIT), does_not_pay, media)
    batches = sum(count > 1 for count in forwards)
    assert batches <= 2 + len(forwards) // LOOKS_AGAIN


@pytest.mark.parametrize(("before", "after"), [(pays, does_not_pay), (does_not_pay, pays)])
def test_it_looks_again(before, after):
    """When the faster kind becomes the slower one, the other is taken within a while, and kept."""
    sizes = BatchSizes(4, LIMIT)
    run(sizes, before, 400)
    run(sizes, after, 400 * 4)
    forwards = run(sizes, after, 200)
    together = sum(count for count in forwards if count > 1)
    assert together > 180 if after is pays else together < 20


@pytest.mark.parametrize("cost", [pays, does_not_pay])
def test_a_look_is_one_forward_in_64(cost):
    """The slower kind is tried again, but no more often."""
    sizes = BatchSizes(4, LIMIT)
    run(sizes, cost, 400)
    forwards = run(sizes, cost, 4000)
    tries = [count for count in forwards if (count == 1) == (cost is pays)]
    assert len(forwards) // LOOKS_AGAIN - 2 <= len(tries) <= len(forwards) // LOOKS_AGAIN + 2


@pytest.mark.parametrize("slow", ["single", "batch", "both"])
def test_what_only_the_first_forward_costs_does_not_count(slow):
    """The first forward of either kind prepares much: it says nothing about those that follow."""
    forwards = {"single": 0, "batch": 0}

    def cost(count):
        kind = "single" if count == 1 else "batch"
        forwards[kind] += 1
        return 1000.0 if forwards[kind] == 1 and slow in {kind, "both"} else 1.0

    sizes = BatchSizes(8, LIMIT)
    assert len(run(sizes, cost, 64)) <= 64 / 8 + 2


def test_one_shape_says_nothing_about_another():
    """Each shape is tried by itself."""
    sizes = BatchSizes(4, LIMIT)
    run(sizes, does_not_pay, 40, "a")
    assert run(sizes, pays, 42, "b") == run(BatchSizes(4, LIMIT), pays, 42)
    assert sizes.size("a", 4) == 1
    assert sizes.size("b", 4) == 4


def test_a_medium_that_is_alone_is_decoded_alone():
    """Where one is ready there is nothing to choose, nor does it count as a choice."""
    sizes = BatchSizes(8, LIMIT)
    run(sizes, pays, 100)
    assert [sizes.size(SHAPE, 1) for _ in range(3)] == [1, 1, 1]


def test_nothing_waits_where_batches_do_not_pay():
    """Waiting is for batches that pay, or of which nothing is known yet."""
    sizes = BatchSizes(4, LIMIT)
    run(sizes, does_not_pay, 40)
    for _ in range(3 * LOOKS_AGAIN):
        assert not sizes.waits(SHAPE)
        sizes.record(SHAPE, 1, 1.0)
    sizes = BatchSizes(4, LIMIT)
    run(sizes, pays, 40)
    assert sizes.waits(SHAPE)


def test_with_batches_of_one_nothing_is_tried():
    """A processor that allows no batches gets none, and nothing waits."""
    sizes = BatchSizes(1, LIMIT)
    assert run(sizes, pays, 10) == [1] * 10
    assert not sizes.waits(SHAPE)


@pytest.mark.parametrize(("each", "most"), [(0.5, 8), (10.0, 3), (25.0, 1), (100.0, 1)])
def test_a_forward_has_its_time(each, most):
    """No more media go together than the limit of a forward lets through, by what one of them takes."""
    sizes = BatchSizes(8, 30.0)
    assert max(run(sizes, lambda count: each * count * (0.9 if count > 1 else 1), 200)) == most


def test_what_fails_together_goes_alone():
    """Batches that fail are tried now and then, no more; when one passes, the faster kind is taken."""
    sizes, forwards = BatchSizes(8, LIMIT), []
    for _ in range(300):
        count = sizes.size(SHAPE, 8)
        forwards.append(count)
        if count > 1:
            sizes.failed(SHAPE)
        for _ in range(count):
            sizes.record(SHAPE, 1, 1.0)
    assert forwards.count(8) <= 2 + 300 // LOOKS_AGAIN * 2
    assert forwards.count(8) >= 3
    assert run(sizes, pays, 4000)[-100:].count(8) >= 98
