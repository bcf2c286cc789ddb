"""Closed lines of points: borders of rectangles, longitudes along them, and what of them lies in a rectangle."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Box: TypeAlias = tuple[float, float, float, float]
"""(west, south, east, north): x and y of two corners, longitude before latitude whatever a system says."""
Points: TypeAlias = "tuple[NDArray[np.float64], NDArray[np.float64]]"
"""x and y of places."""

TURN = 360.0
"""Degrees after which longitudes repeat."""


def ring(box: Box, steps: int) -> Points:
    """The border of a box, each edge in so many pieces; the last point is the first."""
    west, south, east, north = box
    along = np.arange(steps) / steps  # from 0 up to 1, which is the next edge's 0
    there = np.concatenate([along, np.ones(steps), 1 - along, np.zeros(steps), [0.0]])
    up = np.concatenate([np.zeros(steps), along, np.ones(steps), 1 - along, [0.0]])
    return west * (1 - there) + east * there, south * (1 - up) + north * up


def extent(points: Points) -> Box:
    """The smallest box around points."""
    x, y = points
    return float(x.min()), float(y.min()), float(x.max()), float(y.max())


def bend(points: Points, steps: int, near: Box) -> float:
    """How far a curved border may lie from the straight pieces between points of it.

    An arc lies off the middle of its chord by an eighth of the second difference of its points.

    Args:
        points: the border of a box, as `ring` makes it; any other ring counts as straight.
        steps: pieces of each edge.
        near: where it is asked for: pieces that lie elsewhere may be as long as those to a pole in Mercator's map.

    """
    places = np.stack(points)
    if steps < 2 or places.shape[1] != 4 * steps + 1:
        return 0.0
    return max(_bend(places[:, at : at + steps + 1], near) for at in range(0, 4 * steps, steps))


def _bend(edge: NDArray[np.float64], near: Box) -> float:
    """How far the pieces of an edge, [2, points], that may touch a box may lie from it, in x or in y."""
    arcs = np.pad(np.abs(np.diff(edge, 2, axis=1)) / 8, ((0, 0), (1, 1)))
    off = np.maximum(arcs[:, :-1], arcs[:, 1:])
    low, high = np.minimum(edge[:, :-1], edge[:, 1:]) - off, np.maximum(edge[:, :-1], edge[:, 1:]) + off
    first, last = np.array(near).reshape(2, 2, 1)
    touching = ((low <= last) & (high >= first)).all(axis=0)
    return float(off[:, touching].max(initial=0.0))


def unwrapped(points: Points) -> Points:
    """A ring of longitudes and latitudes without jumps by a turn; all of a hemisphere's end for one around a pole."""
    x: NDArray[np.float64] = np.asarray(np.unwrap(points[0], period=TURN), np.float64)
    y = points[1]
    if abs(x[-1] - x[0]) < TURN / 2:
        return x, y
    south, north = (float(y.min()), 90.0) if y.mean() > 0 else (-90.0, float(y.max()))
    return ring((-TURN / 2, south, TURN / 2, north), 1)


def within(points: Points, box: Box) -> Points | None:
    """What a box has of the area in a ring (Sutherland and Hodgman 1974); None where that is nothing.

    Args:
        points: the ring.
        box: the box.

    """
    places = np.stack(points, axis=1)[:-1]
    for axis, limit, side in ((0, box[0], 1), (0, box[2], -1), (1, box[1], 1), (1, box[3], -1)):
        places = _cut(places, (places[:, axis] - limit) * side)
        if not len(places):
            return None
    return places[:, 0], places[:, 1]


def _cut(places: NDArray[np.float64], inside: NDArray[np.float64]) -> NDArray[np.float64]:
    """The part of a polygon where a number that is linear in the place, given at its corners, is not negative."""
    after, then = np.roll(places, -1, axis=0), np.roll(inside, -1)
    crosses = (inside < 0) != (then < 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (inside / (inside - then))[:, np.newaxis]
        crossings = places + share * (after - places)
    both = np.stack([places, crossings], axis=1).reshape(-1, 2)
    keep = np.stack([inside >= 0, crosses], axis=1).ravel()
    kept: NDArray[np.float64] = both[keep]
    return kept
