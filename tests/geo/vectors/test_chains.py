"""Putting linked elements in order, and finding connected ones, against plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from vllm_mmout.geo.vectors.chains import connected, in_order, ranges


def links(rng, sizes):
    """What follows each element, of chains of some sizes in random order: above 0 closed ones, below 0 open ones."""
    numbers = rng.permutation(sum(map(abs, sizes))).astype(np.int32)
    following = np.arange(len(numbers), dtype=np.int32)
    start, chains = 0, []
    for size in sizes:
        chain = numbers[start : start + abs(size)]
        start += abs(size)
        following[chain[:-1]] = chain[1:]
        if size > 0:
            following[chain[-1]] = chain[0]
        chains.append((size > 0 and size > 1, chain.tolist()))
    return following, chains


@pytest.mark.parametrize("seed", range(5))
def test_chains_come_in_their_order(seed):
    """Each chain is there once, open ones from their first element on, closed ones from any."""
    rng = np.random.default_rng(seed)
    sizes = [*rng.integers(2, 70, 20), *-rng.integers(1, 70, 20), 1025, -1024]
    following, chains = links(rng, [int(size) for size in sizes])
    found = in_order(following)
    parts = [part.tolist() for part in np.split(found.order, found.starts[1:-1])]
    turned = []
    for place, (closed, part) in enumerate(zip(found.closed.tolist(), parts, strict=True)):
        assert set(found.chain[part]) == {place}
        at = part.index(min(part)) if closed else 0
        turned.append((closed, part[at:] + part[:at]))
    expected = []
    for closed, part in chains:
        at = part.index(min(part)) if closed else 0
        expected.append((closed, part[at:] + part[:at]))
    assert sorted(turned) == sorted(expected)


def test_nothing_has_no_chains():
    """No elements are no chains."""
    found = in_order(np.zeros(0, np.int32))
    assert (len(found.order), found.starts.tolist(), len(found.closed)) == (0, [0], 0)


@pytest.mark.parametrize("seed", range(5))
def test_connected_elements_have_one_number(seed):
    """Numbers are those of a plain search, without gaps."""
    rng = np.random.default_rng(seed)
    one, other = rng.integers(0, 200, (2, 150))
    count, numbers = connected(200, one, other)
    groups = [{element} for element in range(200)]
    for a, b in zip(one.tolist(), other.tolist(), strict=True):
        joined = groups[a] | groups[b]
        for element in joined:
            groups[element] = joined
    assert sorted(set(numbers.tolist())) == list(range(count))
    for element in range(200):
        assert set(np.flatnonzero(numbers == numbers[element]).tolist()) == groups[element]


def test_ranges_follow_each_other():
    """An empty range is left out."""
    assert ranges(np.array([5, 9, 0]), np.array([2, 0, 3])).tolist() == [5, 6, 0, 1, 2]
    assert ranges(np.zeros(0, np.int64), np.zeros(0, np.int64)).tolist() == []
