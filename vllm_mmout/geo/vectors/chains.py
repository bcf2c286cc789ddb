"""Chains of linked elements, put in order without a loop over elements: list ranking, and connected components."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Chains:
    """Elements in order, one chain after the other."""

    order: NDArray[np.int32]
    """The elements, chain by chain, from the first to the last of each."""
    starts: NDArray[np.int64]
    """Where each chain begins in ``order``, and the number of elements at the end."""
    closed: NDArray[np.bool_]
    """Of each chain whether its last element is followed by its first."""
    chain: NDArray[np.int32]
    """The chain of each element."""


def in_order(following: NDArray[np.int32]) -> Chains:
    """Find the chains of elements by pointer jumping (Wyllie 1979): so many rounds as the longest chain has bits."""
    count = len(following)
    own = np.arange(count, dtype=np.int32)
    # The lowest label of a chain is its name: that of its end if it is open, which is negative, else any.
    label = np.where(following == own, own - count, own).astype(np.int32)
    jump = following
    while True:
        lower = np.minimum(label, label[jump])
        if np.array_equal(lower, label):  # of each window of a closed chain the lowest: of the whole chain
            break
        label, jump = lower, jump[jump]
    ends = np.where(label < 0, following == own, following == label)
    jump = np.where(ends, own, following)
    distance = (~ends).astype(np.int32)
    while True:
        further = distance[jump]
        if not further.any():
            break
        distance += further
        jump = jump[jump]
    chain = (np.cumsum(ends, dtype=np.int32) - 1)[jump]
    starts = np.zeros(int(ends.sum()) + 1, np.int64)
    np.cumsum(np.bincount(chain, minlength=len(starts) - 1), out=starts[1:])
    order = np.empty(count, np.int32)
    order[starts[chain + 1] - 1 - distance] = own
    return Chains(order, starts, label[ends] >= 0, chain)


def connected(count: int, one: NDArray[np.intp], other: NDArray[np.intp]) -> tuple[int, NDArray[np.intp]]:
    """Number the connected components of a graph."""
    parent = np.arange(count)
    while True:
        roots = parent[one], parent[other]
        apart = roots[0] != roots[1]
        if not apart.any():
            break
        one, other = one[apart], other[apart]
        low, high = np.minimum(*roots)[apart], np.maximum(*roots)[apart]
        np.minimum.at(parent, high, low)
        while True:
            above = parent[parent]
            if np.array_equal(above, parent):
                break
            parent = above
    roots_of_all = parent == np.arange(count)
    return int(roots_of_all.sum()), (np.cumsum(roots_of_all) - 1)[parent]


def ranges(starts: NDArray[np.intp], counts: NDArray[np.intp]) -> NDArray[np.intp]:
    """The numbers from each start on, so many as its count says, one range after the other."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    places: NDArray[np.intp] = np.arange(total) + np.repeat(starts - (ends - counts), counts)
    return places
