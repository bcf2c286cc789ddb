"""Corners of the borders of regions in a band of rows, and which corner follows which.

A border runs along the edges of pixels, counterclockwise as a picture is seen: with its region on the left hand. Pixels
that touch with a corner alone are not connected: each has a corner of its own there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

FLAG_BITS = 2
TOUCH, JUNCTION = 1, 2
"""Flags in the low bits of a corner's column: a region may touch itself there; three borders or four meet there."""

# What a region's border does at a point of the lattice, by the quadrant that makes it do so.
(
    _NW, _NE, _SW, _SE,  # the region has this quadrant and neither of the two beside it: a turn to the left
    _NOT_SE, _NOT_NW, _NOT_NE, _NOT_SW,  # it has the three others: a turn to the right
    _EAST, _WEST, _NORTH, _SOUTH,  # it goes straight on where another border ends
) = range(12)  # fmt: skip
_EASTWARD = ((_NE, _NOT_SE), (_NW, _NE, _NOT_SE, _NOT_SW, _EAST))
"""Where stretches to the east begin, and all that lies on them; they run below their region."""
_WESTWARD = ((_SW, _NOT_NW), (_SW, _SE, _NOT_NW, _NOT_NE, _WEST))
_NORTHWARD = (_NW, _SW, _NOT_SE, _NOT_NE, _NORTH)
_SOUTHWARD = (_NE, _SE, _NOT_NW, _NOT_SW, _SOUTH)


_At: TypeAlias = tuple[NDArray[np.intp], NDArray[np.intp]]
"""Rows and columns of points of the lattice."""
_Sides: TypeAlias = tuple[NDArray[np.bool_], ...]
"""Whether there is a border above, below, to the left and to the right of each."""


@dataclass(frozen=True, slots=True, eq=False)
class Verticals:
    """Vertical stretches of borders on one side of regions, sorted by column and row."""

    upper: NDArray[np.int32]
    """The element at the upper end of each."""
    lower: NDArray[np.int32]
    key: NDArray[np.int64]
    """Column and row of the upper end, in one number."""
    top: NDArray[np.int32]
    """Row of the upper end, from the band's first; -1 for what comes from above."""

    height: int
    """Rows of the band."""

    def at(self, rows: NDArray[np.intp], cols: NDArray[np.intp]) -> NDArray[np.intp]:
        """The stretch in each column that runs along the pixel in each row, from the band's first."""
        keys = cols.astype(np.int64) * (self.height + 2) + rows + 1
        return np.searchsorted(self.key, keys, side="right") - 1


@dataclass(frozen=True, slots=True, eq=False)
class Linked:
    """The elements of borders in a band, and what follows them.

    Elements are, in this order: stretches of corners within one row; chains that come from above; ports, where borders
    leave the band, those that come up from below first.
    """

    vertices: NDArray[np.int32]
    """[n, 2]: column, shifted by `FLAG_BITS` with flags below, and row of corners, stretch by stretch."""
    starts: NDArray[np.int64]
    """Where each stretch begins in ``vertices``, and their number at the end."""
    following: NDArray[np.int32]
    """What follows each element, itself where a border leaves downwards."""
    ports_up: NDArray[np.int32]
    """Column of each port of borders that come up from below."""
    ports_down: NDArray[np.int32]
    """Column of each port of borders that leave downwards."""
    left: Verticals
    """Left borders of regions."""
    right: Verticals


def link(
    labels: NDArray[np.int32],
    row: int,
    height: int,
    heads: NDArray[np.int32],
    tails: NDArray[np.int32],
    *,
    junctions: bool,
) -> Linked:
    """Find the corners of a band of rows and link them.

    Args:
        labels: [rows + 1, columns + 2], classes of the band's pixels with the row above it, and with a column on either
            side that is no region; below 0: no region.
        row: number of the band's first row.
        height: rows of the raster.
        heads: of each chain that comes from above the column in which borders go up to its beginning.
        tails: the column in which it comes down from its end.
        junctions: whether borders have a corner also where they go straight on and another one ends.

    """
    at, places = _places(labels)
    which, kind = np.nonzero(_kinds(labels, at, places, junctions=junctions))
    lines, columns = at[0][which], at[1][which]
    flagged = (columns << FLAG_BITS) | _flags(labels, at, places, (-row, height - row))[which]
    stretches, starts = _stretches(kind)
    count = len(starts)
    element = np.empty(len(kind), np.int32)
    element[stretches] = np.repeat(np.arange(count, dtype=np.int32), np.diff(starts, append=len(stretches)))
    ports = _ports(labels[-1])
    total = count + len(heads) + len(ports[0]) + len(ports[1])
    following = np.arange(total, dtype=np.int32)
    above = np.arange(count, count + len(heads), dtype=np.int32)
    below = np.split(np.arange(count + len(heads), total, dtype=np.int32), [len(ports[0])])
    sides = []
    for members, straight, top, bottom, ids in (
        (_SOUTHWARD, _SOUTH, tails, ports[1], below[1]),
        (_NORTHWARD, _NORTH, heads, ports[0], below[0]),
    ):
        chosen = np.flatnonzero(np.isin(kind, members))
        chosen = np.repeat(chosen, np.where(kind[chosen] == straight, 2, 1))  # the end of one, and the next's beginning
        found = np.concatenate([above, element[chosen], ids])
        col = np.concatenate([top, columns[chosen], bottom])
        line = np.concatenate([np.full(len(top), -1), lines[chosen], np.full(len(bottom), len(labels) - 1)])
        sides.append(_verticals(found, col, line, len(labels) - 1))
    left, right = sides
    following[left.upper] = left.lower
    following[right.lower] = right.upper
    vertices = np.stack([flagged[stretches], lines[stretches] + row], axis=1).astype(np.int32)
    return Linked(vertices, np.append(starts, len(stretches)), following, *ports, left, right)


def _places(labels: NDArray[np.int32]) -> tuple[_At, _Sides]:
    """Rows and columns of the lattice where borders do not just go straight on; is one above, below, left, right?"""
    upright = labels[:, 1:] != labels[:, :-1]
    flat = labels[1:] != labels[:-1]
    above, below, left, right = upright[:-1], upright[1:], flat[:, :-1], flat[:, 1:]
    at = np.divmod(np.flatnonzero((above | below) & (left | right)), upright.shape[1])
    return at, (above[at], below[at], left[at], right[at])


def _quadrants(labels: NDArray[np.int32], at: _At) -> list[NDArray[np.int32]]:
    rows, cols = at
    return [labels[rows, cols], labels[rows, cols + 1], labels[rows + 1, cols], labels[rows + 1, cols + 1]]


def _kinds(labels: NDArray[np.int32], at: _At, places: _Sides, *, junctions: bool) -> NDArray[np.bool_]:
    """What there is, bool [places, kinds], at each place, in the order in which stretches end and begin there."""
    above, below, left, right = places
    nw, ne, sw, se = (quadrant >= 0 for quadrant in _quadrants(labels, at))
    kinds = np.empty((len(above), 12 if junctions else 8), np.bool_)
    kinds[:, _NW] = above & left & nw
    kinds[:, _NE] = above & right & ne
    kinds[:, _SW] = below & left & sw
    kinds[:, _SE] = below & right & se
    kinds[:, _NOT_SE] = ~(above | left) & nw
    kinds[:, _NOT_NW] = ~(below | right) & se
    kinds[:, _NOT_NE] = ~(below | left) & sw
    kinds[:, _NOT_SW] = ~(above | right) & ne
    if junctions:
        kinds[:, _EAST] = ~above & left & right & nw
        kinds[:, _WEST] = ~below & left & right & sw
        kinds[:, _NORTH] = ~left & above & below & nw
        kinds[:, _SOUTH] = ~right & above & below & ne
    return kinds


def _flags(labels: NDArray[np.int32], at: _At, places: _Sides, ends: tuple[int, int]) -> NDArray[np.intp]:
    """The flags of each place; ``ends`` are the rows of the raster's upper and lower edge, from the band's first."""
    nw, ne, sw, se = _quadrants(labels, at)
    meeting = np.sum(places, axis=0)
    touching = (meeting == 4) & (((nw == se) & (nw >= 0)) | ((ne == sw) & (ne >= 0)))
    rows, cols = at
    # What is simplified must not lose a corner of the raster: one counts as a junction.
    cornered = np.isin(rows, ends) & ((cols == 0) | (cols == labels.shape[1] - 2))
    flags: NDArray[np.intp] = np.where(touching, TOUCH, 0) | np.where((meeting > 2) | cornered, JUNCTION, 0)
    return flags


def _stretches(kind: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The corners in the order of stretches within one row, and where each stretch begins in it."""
    corners, starts, count = [], [], 0
    for (begin, members), step in ((_EASTWARD, 1), (_WESTWARD, -1)):
        chosen = np.flatnonzero(np.isin(kind, members))[::step]
        corners.append(chosen)
        starts.append(np.flatnonzero(np.isin(kind[chosen], begin)) + count)
        count += len(chosen)
    alone = np.flatnonzero(kind >= _NORTH)
    return np.concatenate([*corners, alone]), np.concatenate([*starts, np.arange(count, count + len(alone))])


def _ports(last: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    cols = np.flatnonzero(last[1:] != last[:-1]).astype(np.int32)
    return cols[last[cols] >= 0], cols[last[cols + 1] >= 0]


def _verticals(elements: NDArray[np.int32], cols: NDArray[np.intp], rows: NDArray[np.intp], height: int) -> Verticals:
    """Pair the ends of stretches, which come from top to bottom in each column."""
    order = np.argsort(cols.astype(np.uint16) if not len(cols) or cols.max() < 2**16 else cols, kind="stable")
    upper, lower = order[::2], order[1::2]
    key = cols[upper].astype(np.int64) * (height + 2) + rows[upper] + 1
    return Verticals(elements[upper], elements[lower], key, rows[upper].astype(np.int32), height)
