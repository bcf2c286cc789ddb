"""Simplify polygons so that neighbouring polygons still share their border.

A junction is a point where three or four borders meet. The border between two junctions is simplified separately by
the algorithm of Douglas & Peucker (1973), always in the same direction, so both regions beside it get the same line.
A ring with fewer than two junctions is split at corners that depend only on its shape.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.geo.vectors.chains import ranges
from vllm_mmout.geo.vectors.corners import JUNCTION
from vllm_mmout.geo.vectors.polygon import Polygons, doubled_areas, without_flags


def simplified(polygons: Polygons, tolerance: float) -> Polygons:
    """Simplify the borders of polygons by removing corners. Borders move by at most ``tolerance`` pixels.

    Junctions and the corners of the raster are kept. A border that is not straight also keeps the corner farthest from
    the line between its ends. A ring that would lose its area or reverse its direction is not simplified, so
    its neighbours may overlap it by the tolerance. Borders closer to each other than the tolerance may cross.
    """
    if not len(polygons.counts):
        return polygons
    corners, counts = without_flags(polygons.vertices), polygons.counts
    starts = np.cumsum(counts) - counts
    ring = np.repeat(np.arange(len(counts)), counts)
    anchors = _anchors(polygons.vertices, corners, starts, ring)
    first = np.flatnonzero(anchors)[np.searchsorted(np.flatnonzero(anchors), starts)]
    # The corners of each ring, from its first anchor around the ring and back to that anchor.
    steps = ranges(np.zeros_like(counts), counts + 1)
    line = np.repeat(starts, counts + 1) + (np.repeat(first - starts, counts + 1) + steps) % np.repeat(
        counts, counts + 1
    )
    closing = np.cumsum(counts + 1) - 1
    kept = np.zeros(len(line), np.bool_)
    stops = np.flatnonzero(anchors[line])
    arcs = np.flatnonzero(~np.isin(stops[:-1], closing))
    _keep(corners[line], stops[arcs], stops[arcs + 1], tolerance, kept)
    kept[closing] = False  # the repeated first anchor
    keep = np.zeros(len(corners), np.bool_)
    keep[line[kept]] = True
    for _ in range(2):
        new = np.add.reduceat(keep, starts, dtype=np.int64)
        remaining = corners[keep]
        before, after = doubled_areas(corners, counts), doubled_areas(remaining, new)
        lost = (np.sign(before) != np.sign(after)) | (new < 3)
        if not lost.any():
            break
        keep |= lost[ring]
    return replace(polygons, counts=new, vertices=polygons.vertices[keep])


def _anchors(
    vertices: NDArray[np.int32], corners: NDArray[np.int32], starts: NDArray[np.int64], ring: NDArray[np.intp]
) -> NDArray[np.bool_]:
    """Return a mask of the anchors, the corners that split each ring into lines. Each line is simplified separately.

    Anchors are the junctions. A ring with a single junction is also split at the corner farthest from it. A ring
    without junctions is split at its first corner in row-column order and at the corner farthest from that.
    """
    anchors = (vertices[:, 0] & JUNCTION) > 0
    key = corners[:, 1].astype(np.int64) << 32 | corners[:, 0]
    few = np.add.reduceat(anchors, starts, dtype=np.int64)[ring]
    last = np.int64(2**62)
    lowest = np.minimum.reduceat(np.where(few == 0, key, last), starts)[ring]
    anchors |= key == lowest
    ring_anchor = np.maximum.reduceat(np.where(anchors & (few < 2), np.arange(len(ring)), -1), starts)[ring]
    apart = ((corners.astype(np.int64) - corners[ring_anchor]) ** 2).sum(axis=1)
    farthest = np.maximum.reduceat(apart, starts)[ring]
    candidates = np.where((few < 2) & (apart == farthest), key, last)
    anchors |= (candidates == np.minimum.reduceat(candidates, starts)[ring]) & (few < 2)
    return anchors


def _keep(
    points: NDArray[np.int32],
    first: NDArray[np.intp],
    last: NDArray[np.intp],
    tolerance: float,
    kept: NDArray[np.bool_],
) -> None:
    """Simplify lines, and set ``kept[i]`` to True for each point i that remains.

    The algorithm is from Douglas & Peucker (1973). Line i consists of the points from ``first[i]`` to ``last[i]``, both
    included.
    """
    counts = last - first + 1
    places = ranges(first, counts)
    ends = points[first].astype(np.int64), points[last].astype(np.int64)
    backwards = (ends[0][:, 1] > ends[1][:, 1]) | ((ends[0][:, 1] == ends[1][:, 1]) & (ends[0][:, 0] > ends[1][:, 0]))
    turned = np.repeat(backwards, counts)
    places[turned] = (np.repeat(first + last, counts) - places)[turned]
    line = points[places].astype(np.float64)
    stay = np.zeros(len(line), np.bool_)
    high = np.cumsum(counts) - 1
    low = high - counts + 1
    stay[low] = stay[high] = True
    limit = 0.0
    while len(low):
        wide = high - low > 1
        low, high = low[wide], high[wide]
        if not len(low):
            break
        between = high - low - 1
        inner = ranges(low + 1, between)
        stretch = np.repeat(np.arange(len(low)), between)
        apart = _squared_distances(line[inner], line[low][stretch], line[high][stretch])
        most = np.maximum.reduceat(apart, np.cumsum(between) - between)
        farthest = np.flatnonzero(apart == most[stretch])
        middle = inner[farthest[np.diff(stretch[farthest], prepend=-1) > 0]]
        cut = most > limit
        low, middle, high = low[cut], middle[cut], high[cut]
        stay[middle] = True
        low, high = np.concatenate([low, middle]), np.concatenate([middle, high])
        limit = tolerance**2
    kept[places[stay]] = True


def _squared_distances(
    points: NDArray[np.float64], starts: NDArray[np.float64], ends: NDArray[np.float64]
) -> NDArray[np.float64]:
    along = ends - starts
    part = np.clip(((points - starts) * along).sum(axis=1) / (along**2).sum(axis=1), 0, 1)
    away: NDArray[np.float64] = ((points - starts - part[:, np.newaxis] * along) ** 2).sum(axis=1)
    return away
