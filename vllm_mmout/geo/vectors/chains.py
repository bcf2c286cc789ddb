"""Follow linked lists and find connected components with numpy operations, for the tracing of polygons."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Chains:
    """Linked lists of array indices, some of them rings. `order` stores one list after the other."""

    order: NDArray[np.int32]
    """Elements of all linked lists, as array indices. The lists follow one another, each from its first element to its
    last."""
    starts: NDArray[np.int64]
    """Start of each list in `order`, the array with the elements of all lists. The last item is the number of elements.
    """
    closed: NDArray[np.bool_]
    """True for each linked list that is a ring. In a ring, the first element follows the last element."""
    chain: NDArray[np.int32]
    """Index of the linked list that each element belongs to."""


def in_order(following: NDArray[np.int32]) -> Chains:
    """Put the elements of linked lists in order. ``following[i]`` is the index of the element after element i.

    At the end of an open list, ``following[i]`` is i. The method is pointer jumping (Wyllie 1979).
    """
    count = len(following)
    elements = np.arange(count, dtype=np.int32)
    # A chain is identified by its lowest label: the negative label of its end if it is open, else its lowest element.
    label = np.where(following == elements, elements - count, elements).astype(np.int32)
    jump = following
    while True:
        lower = np.minimum(label, label[jump])
        if np.array_equal(lower, label):  # every element has the lowest label of its whole chain
            break
        label, jump = lower, jump[jump]
    ends = np.where(label < 0, following == elements, following == label)
    jump = np.where(ends, elements, following)
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
    order[starts[chain + 1] - 1 - distance] = elements
    return Chains(order, starts, label[ends] >= 0, chain)


def connected(count: int, sources: NDArray[np.intp], targets: NDArray[np.intp]) -> tuple[int, NDArray[np.intp]]:
    """Find the connected components of a graph. Return their number, and the component index of each node.

    The graph has ``count`` nodes. Edge i connects node ``sources[i]`` with node ``targets[i]``. The direction does not
    matter.
    """
    parent = np.arange(count)
    while True:
        roots = parent[sources], parent[targets]
        apart = roots[0] != roots[1]
        if not apart.any():
            break
        sources, targets = sources[apart], targets[apart]
        low, high = np.minimum(*roots)[apart], np.maximum(*roots)[apart]
        np.minimum.at(parent, high, low)
        while True:
            grandparent = parent[parent]
            if np.array_equal(grandparent, parent):
                break
            parent = grandparent
    is_root = parent == np.arange(count)
    return int(is_root.sum()), (np.cumsum(is_root) - 1)[parent]


def ranges(starts: NDArray[np.intp], counts: NDArray[np.intp]) -> NDArray[np.intp]:
    """Concatenate ranges of integers. Range i has ``counts[i]`` integers and begins at ``starts[i]``."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    integers: NDArray[np.intp] = np.arange(total) + np.repeat(starts - (ends - counts), counts)
    return integers
