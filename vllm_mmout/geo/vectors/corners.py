"""Find the corners of region borders in a strip of raster rows, and link them in order along each border.

A border runs along the edges of pixels, counterclockwise as seen on a screen, with its region on the left. Pixels that
touch only at a corner are not connected, so each of them has its own corner there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

FLAG_BITS = 2
TOUCH, JUNCTION = 1, 2
"""Flags of a polygon corner, in the low bits of its column number.

TOUCH is set if a region may touch itself at the corner, JUNCTION if three or four borders meet there."""

# Kinds of corners that a region's border can have at a lattice point, named by a quadrant around the point.
(
    _NW, _NE, _SW, _SE,  # the region has this quadrant and neither of the two beside it: the border turns left
    _NOT_SE, _NOT_NW, _NOT_NE, _NOT_SW,  # the region has the three other quadrants: the border turns right
    _EAST, _WEST, _NORTH, _SOUTH,  # the border goes straight on in this direction, and another border ends here
) = range(12)  # fmt: skip
_EASTWARD = ((_NE, _NOT_SE), (_NW, _NE, _NOT_SE, _NOT_SW, _EAST))
"""Kinds of corners on border lines that run east, with the region above the line. The first tuple lists the kinds that
can begin a line. The second tuple lists all kinds that can be on a line."""
_WESTWARD = ((_SW, _NOT_NW), (_SW, _SE, _NOT_NW, _NOT_NE, _WEST))
"""Kinds of corners on border lines that run west, with the region below the line. The first tuple lists the kinds that
can begin a line. The second tuple lists all kinds that can be on a line."""
_NORTHWARD = (_NW, _SW, _NOT_SE, _NOT_NE, _NORTH)
_SOUTHWARD = (_NE, _SE, _NOT_NW, _NOT_SW, _SOUTH)


_PixelCorners: TypeAlias = tuple[NDArray[np.intp], NDArray[np.intp]]
"""Positions of pixel corners, as an array of rows and an array of columns."""
_Sides: TypeAlias = tuple[NDArray[np.bool_], ...]
"""Four masks of pixel corners: whether a border runs from the corner up, down, to the left, and to the right."""


@dataclass(frozen=True, slots=True, eq=False)
class Verticals:
    """Table of vertical border lines, sorted by column and row.

    `LinkedElements` has a table for the left edges of regions, and a table for the right edges. The lines end at border
    pieces of `LinkedElements`.
    """

    upper: NDArray[np.int32]
    """Index of the border piece at the upper end of each vertical line, as counted in `LinkedElements`."""
    lower: NDArray[np.int32]
    """Index of the border piece at the lower end of each vertical line, as counted in `LinkedElements`."""
    key: NDArray[np.int64]
    """Sort key of each vertical line. A key combines the line's column and upper row in a single integer."""
    top: NDArray[np.int32]
    """Row of the upper end of each vertical line, counted from the top of the traced strip of rows. -1 if the line
    begins above the strip."""

    height: int
    """Number of raster rows that are traced together."""

    def indices_at(self, rows: NDArray[np.intp], cols: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the indices of the vertical border lines that cross row ``rows[i]`` in column ``cols[i]``."""
        keys = cols.astype(np.int64) * (self.height + 2) + rows + 1
        return np.searchsorted(self.key, keys, side="right") - 1


@dataclass(frozen=True, slots=True, eq=False)
class LinkedElements:
    """Pieces of region borders in a strip of raster rows, each linked to the next piece of its border.

    The pieces are, in this order: stretches, which are horizontal lines of a border with their corners; unfinished
    borders from the rows above the strip; ports, which are points where borders cross the strip's lower edge. Ports of
    borders that go up come first.
    """

    vertices: NDArray[np.int32]
    """Column and row of each border corner, int32 [n, 2]. The corners of a horizontal line are consecutive.

    The low `FLAG_BITS` bits of a column hold flags.
    """
    starts: NDArray[np.int64]
    """Index in ``vertices`` of each horizontal line's first corner. The last entry is the number of corners."""
    following: NDArray[np.int32]
    """Index of the next piece of the same border, for each border piece. The last piece of a border that continues
    below the strip has its own index here."""
    ports_up: NDArray[np.int32]
    """Columns where borders enter the strip of raster rows, going up across the lower edge of the strip."""
    ports_down: NDArray[np.int32]
    """Columns where borders leave the strip of raster rows, going down across the lower edge of the strip."""
    left: Verticals
    """Table of the vertical border lines at the left edges of regions. Borders run down along these lines."""
    right: Verticals
    """Table of the vertical border lines at the right edges of regions. Borders run up along these lines."""


def link(
    labels: NDArray[np.int32],
    row: int,
    height: int,
    heads: NDArray[np.int32],
    tails: NDArray[np.int32],
    *,
    junctions: bool,
) -> LinkedElements:
    """Find the corners of region borders in a strip of raster rows, and link them in order along each border.

    Args:
        labels: classes [rows + 1, columns + 2] of the row above the strip and of the strip, with an additional column
            on either side. Values below 0 belong to no region, which includes both additional columns.
        row: index of the strip's first row in the raster.
        height: number of rows of the raster.
        heads: column where each unfinished border begins, going up across the upper edge of the strip.
        tails: column where each unfinished border ends, coming down across the upper edge of the strip.
        junctions: True to add a corner where a border goes straight on and another border ends.

    """
    at, sides_at = _lattice_points(labels)
    points, kind = np.nonzero(_kinds(labels, at, sides_at, junctions=junctions))
    lines, columns = at[0][points], at[1][points]
    flagged = (columns << FLAG_BITS) | _flags(labels, at, sides_at, (-row, height - row))[points]
    stretches, starts = _horizontal_lines(kind)
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
        chosen = np.repeat(chosen, np.where(kind[chosen] == straight, 2, 1))  # ends a stretch and begins the next
        elements = np.concatenate([above, element[chosen], ids])
        col = np.concatenate([top, columns[chosen], bottom])
        line = np.concatenate([np.full(len(top), -1), lines[chosen], np.full(len(bottom), len(labels) - 1)])
        sides.append(_verticals(elements, col, line, len(labels) - 1))
    left, right = sides
    following[left.upper] = left.lower
    following[right.lower] = right.upper
    vertices = np.stack([flagged[stretches], lines[stretches] + row], axis=1).astype(np.int32)
    return LinkedElements(vertices, np.append(starts, len(stretches)), following, *ports, left, right)


def _lattice_points(labels: NDArray[np.int32]) -> tuple[_PixelCorners, _Sides]:
    """Find the pixel corners where vertical and horizontal borders meet.

    Return the positions of these corners, and masks that tell on which sides of a corner a border runs.
    """
    upright = labels[:, 1:] != labels[:, :-1]
    flat = labels[1:] != labels[:-1]
    above, below, left, right = upright[:-1], upright[1:], flat[:, :-1], flat[:, 1:]
    at = np.divmod(np.flatnonzero((above | below) & (left | right)), upright.shape[1])
    return at, (above[at], below[at], left[at], right[at])


def _quadrants(labels: NDArray[np.int32], at: _PixelCorners) -> list[NDArray[np.int32]]:
    rows, cols = at
    return [labels[rows, cols], labels[rows, cols + 1], labels[rows + 1, cols], labels[rows + 1, cols + 1]]


def _kinds(labels: NDArray[np.int32], at: _PixelCorners, sides: _Sides, *, junctions: bool) -> NDArray[np.bool_]:
    """Find the kinds of border corners, such as left turns, at each pixel corner. Return a mask [corners, kinds].

    The kinds are in the order in which stretches end and begin at a point.
    """
    above, below, left, right = sides
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


def _flags(labels: NDArray[np.int32], at: _PixelCorners, sides: _Sides, ends: tuple[int, int]) -> NDArray[np.intp]:
    """Return the bit flags `TOUCH` and `JUNCTION` of each pixel corner, as an array of integers.

    TOUCH is set where two pixels of equal class meet only at the corner, so that their region may touch itself.
    JUNCTION is set where at least three borders meet, and at the corners of the raster. ``ends`` are the raster's upper
    and lower edge, as rows relative to the strip's first row.
    """
    nw, ne, sw, se = _quadrants(labels, at)
    meeting = np.sum(sides, axis=0)
    touching = (meeting == 4) & (((nw == se) & (nw >= 0)) | ((ne == sw) & (ne >= 0)))
    rows, cols = at
    # The corners of the raster count as junctions, so that simplification keeps them.
    raster_corner = np.isin(rows, ends) & ((cols == 0) | (cols == labels.shape[1] - 2))
    flags: NDArray[np.intp] = np.where(touching, TOUCH, 0) | np.where((meeting > 2) | raster_corner, JUNCTION, 0)
    return flags


def _horizontal_lines(kind: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Group border corners into horizontal lines. ``kind[i]`` is the kind of corner i, such as a left turn.

    The kind tells whether a line begins at the corner. Return the indices of the corners, with the corners of a
    line in succession, and the position in this array at which each line begins. Corners of kind NORTH or SOUTH are
    lines of a single corner.
    """
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
    """Build the table of vertical border lines. ``cols`` and ``rows`` are the positions of the ends of all lines.

    The ends must be sorted by row: upper and lower ends then alternate in each column. ``elements`` are the border
    pieces that the lines end at.
    """
    order = np.argsort(cols.astype(np.uint16) if not len(cols) or cols.max() < 2**16 else cols, kind="stable")
    upper, lower = order[::2], order[1::2]
    key = cols[upper].astype(np.int64) * (height + 2) + rows[upper] + 1
    return Verticals(elements[upper], elements[lower], key, rows[upper].astype(np.int32), height)
