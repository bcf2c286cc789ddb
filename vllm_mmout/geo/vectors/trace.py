"""The polygons of a raster of classes, read and traced a band of rows at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.geo.vectors.chains import Chains, connected, in_order, ranges
from vllm_mmout.geo.vectors.corner_store import Segments, WaitingCorners
from vllm_mmout.geo.vectors.corners import Linked, link
from vllm_mmout.geo.vectors.polygon import OpenBorders, Polygons, Regions, Rings, doubled_areas, simple_rings
from vllm_mmout.geo.vectors.simplify import simplified

BLOCK = 2**17
"""Corners that are handed over at once, about."""
BAND = 2**20
"""Pixels that are traced at once: some 60 bytes each where every pixel differs from its neighbours."""
BUDGET = 2**25
"""Bytes of corners that wait in memory."""


def trace_polygons(
    rows: Iterable[NDArray[np.integer]],
    size: tuple[int, int],
    *,
    nodata: float | None = None,
    areas: NDArray[np.float64] | None = None,
    simplify: float = 0,
    band: int | None = None,
    budget: int = BUDGET,
    folder: Path | None = None,
) -> Iterator[Polygons]:
    """Trace the 4-connected regions of equal class of a raster of (height, width), whose rows come from the top.

    Classes below 0 and ``nodata`` are no regions. ``areas``, [height], are those of a pixel in each row (None: 1);
    ``simplify`` is how far borders may move, in pixels. As many rows as suit the width, or a ``band``, are traced at
    once; beyond a ``budget`` of bytes corners wait in a temporary file in ``folder``.
    """
    step = band or max(1, BAND // size[1])
    with WaitingCorners(budget, folder) as waiting:
        tracer = Tracer(size, waiting, junctions=simplify > 0)
        row = 0
        for some in rows:
            for start in range(0, len(some), step):
                part = some[start : start + step]
                labels = part.astype(np.int32)
                if nodata is not None:
                    labels[part == nodata] = -1
                weights = None if areas is None else areas[row : row + len(part)]
                for found in tracer.add(labels, weights):
                    yield simplified(found, simplify) if simplify > 0 else found
                row += len(part)


class Tracer:
    """Traces one raster: give it the rows in order, and it gives each polygon when its last row has come.

    Borders are joined along runs of pixels, so that no image of labels exists, which would be as large as the raster.
    A region is 4-connected: pixels of one class that share an edge. Two chains of a border belong to one region where a
    row of its pixels runs from one to the other; that connects all borders of a region, those of its holes included:
    where two such rows lie one above the other, they share a stretch of border, or have ends in line.

    In memory are the open borders, some 50 bytes a closed one of a region that goes on, 24 bytes for each stretch that
    a band added to an open one; their corners are in `WaitingCorners`.
    """

    def __init__(self, size: tuple[int, int], waiting: WaitingCorners, *, junctions: bool = False) -> None:
        self._height, self._width = size
        self._waiting = waiting
        self._junctions = junctions
        self._segments = Segments(waiting)
        self._row = 0
        self._above = np.full(self._width + 2, -1, np.int32)
        none = np.zeros(0, np.int64)
        some = np.zeros(0, np.int32)
        self._open = OpenBorders(some, some, none, none, none)
        self._regions = Regions(some, none, np.zeros(0))
        self._rings = Rings(none, none, none, np.zeros(0, np.bool_))

    def add(self, labels: NDArray[np.int32], areas: NDArray[np.float64] | None = None) -> Iterator[Polygons]:
        """Trace the next rows of classes, below 0 no region; what comes must be consumed before further rows go in."""
        band = self._framed(labels)
        linked = link(band, self._row, self._height, self._open.heads, self._open.tails, junctions=self._junctions)
        self._row += len(labels)
        self._above = band[len(labels)].copy()
        chains = in_order(linked.following)
        region, regions = self._joined(band, linked, chains, areas)
        vertices, rings = self._closed(linked, chains, region)
        ended = np.ones(len(regions.classes), np.bool_)
        ended[self._open.region] = False
        self._rings = self._rings.and_(rings)
        whole = ended[self._rings.region]
        done = self._rings.some(whole)
        renumbered = np.cumsum(~ended) - 1
        self._rings = self._kept(self._rings.some(~whole), vertices).of(renumbered)
        self._open = OpenBorders(
            self._open.heads, self._open.tails, self._open.first, self._open.last, renumbered[self._open.region]
        )
        self._regions = regions.some(~ended)
        yield from self._polygons(regions.some(ended), done.of(np.cumsum(ended) - 1), vertices)

    def _framed(self, labels: NDArray[np.int32]) -> NDArray[np.int32]:
        """The rows with the row above them, what is beside the raster, and below the last of all what is there."""
        rows = len(labels)
        last = self._row + rows == self._height
        band = np.full((rows + 1 + last, self._width + 2), -1, np.int32)
        band[0] = self._above
        band[1 : rows + 1, 1:-1] = labels
        return band

    def _joined(
        self, band: NDArray[np.int32], linked: Linked, chains: Chains, areas: NDArray[np.float64] | None
    ) -> tuple[NDArray[np.intp], Regions]:
        """The region of each chain, and what is known of all of them; of those before, in their place the new ones."""
        rows, cols = np.nonzero(band[1:, 1:] != band[1:, :-1])
        runs = np.flatnonzero(band[rows + 1, cols + 1] >= 0)
        rows, cols, ends = rows[runs], cols[runs], cols[runs + 1] if len(runs) else cols[runs]
        lefts, rights = linked.left.at(rows, cols), linked.right.at(rows, ends)
        chain = chains.chain[linked.left.upper[lefts]]
        # A run whose left border comes straight down to it links no more than the runs above it and borders between.
        new = linked.left.top[lefts] == rows
        count, old = len(chains.closed), self._regions
        first = len(linked.starts) - 1
        passing = chains.chain[first : first + len(self._open.heads)]
        regions, number = connected(
            count + len(old.classes),
            np.concatenate([chain[new], passing]),
            np.concatenate([chains.chain[linked.right.upper[rights[new]]], self._open.region + count]),
        )
        of_run, of_old = number[chain], number[count:]
        self._rings = self._rings.of(of_old)
        classes = np.empty(regions, np.int32)
        classes[of_old] = old.classes
        classes[of_run] = band[rows + 1, cols + 1]
        lengths = (ends - cols).astype(np.float64)
        pixels = _sums(of_run, lengths, regions) + _sums(of_old, old.pixels, regions)
        if areas is None:
            sums = pixels
        else:
            sums = _sums(of_run, lengths * areas[rows], regions) + _sums(of_old, old.areas, regions)
        return number[:count], Regions(classes, pixels.astype(np.int64), sums)

    def _closed(self, linked: Linked, chains: Chains, region: NDArray[np.intp]) -> tuple[NDArray[np.int32], Rings]:
        """The corners of borders that were closed, and where each lies among them; open ones are kept."""
        stretches = len(linked.starts) - 1
        counts = np.zeros(len(chains.order), np.int64)
        counts[:stretches] = np.diff(linked.starts)
        order = chains.order
        own = order[order < stretches]
        vertices = linked.vertices[ranges(linked.starts[own], counts[own])]
        ends = np.append(0, np.cumsum(counts[order]))[chains.starts]
        opened = np.bincount(chains.chain[stretches : stretches + len(self._open.heads)], minlength=len(chains.closed))
        alone = chains.closed & (opened == 0)
        sizes = np.diff(ends)
        inside = np.repeat(alone, sizes)
        found, of = self._continued(linked, chains, region, alone, vertices[~inside])
        corners = np.concatenate([vertices[inside], *found])
        numbers = np.concatenate([np.flatnonzero(alone), np.array(of, np.int64)])
        lengths = np.concatenate([sizes[alone], np.array([len(ring) for ring in found], np.int64)])
        corners, lengths, origin = simple_rings(corners, lengths)
        starts = np.cumsum(lengths) - lengths
        bare = corners >> np.array([2, 0], np.int32)
        return corners, Rings(region[numbers[origin]], -1 - starts, lengths, doubled_areas(bare, lengths) < 0)

    def _continued(
        self,
        linked: Linked,
        chains: Chains,
        region: NDArray[np.intp],
        alone: NDArray[np.bool_],
        vertices: NDArray[np.int32],
    ) -> tuple[list[NDArray[np.int32]], list[int]]:
        """Join open borders with what the band adds to them; give those that it closes, and their chains.

        Chains that are ``alone`` are closed, with no part outside the band; ``vertices`` are the corners of the others.
        """
        stretches, before = len(linked.starts) - 1, self._open
        order = chains.order[~alone[chains.chain[chains.order]]]
        order = order[order < stretches + len(before.heads)]  # without ports
        chain = chains.chain[order]
        earlier = order >= stretches
        starts = np.ones(len(order), np.bool_)
        starts[1:] = earlier[1:] | earlier[:-1] | (chain[1:] != chain[:-1])
        # Items: open borders, and stretches of the band that follow each other.
        item, of, old = np.flatnonzero(starts), chain[starts], earlier[starts]
        counts = np.zeros(len(order), np.int64)
        counts[~earlier] = np.diff(linked.starts)[order[~earlier]]
        sizes = np.add.reduceat(counts, item) if len(item) else counts
        first = np.empty(len(item), np.intp)
        last = np.empty(len(item), np.intp)
        earlier_ones = order[item[old]] - stretches
        first[old], last[old] = before.first[earlier_ones], before.last[earlier_ones]
        first[~old] = last[~old] = self._segments.put(vertices, sizes[~old])
        follows = np.flatnonzero(of[1:] == of[:-1])
        self._segments.join(last[follows], first[follows + 1])
        begin = np.ones(len(of), np.bool_)
        begin[1:] = of[1:] != of[:-1]
        end = np.append(begin[1:], True)[: len(of)]
        ends = np.zeros((4, len(chains.closed)), np.intp)
        ends[0, of[begin]], ends[1, of[end]] = first[begin], last[end]
        ports = stretches + len(before.heads)
        up, down = np.split(chains.chain[ports:], [len(linked.ports_up)])
        ends[2, up], ends[3, down] = linked.ports_up, linked.ports_down
        heads, tails = ends[2:].astype(np.int32)
        still = np.flatnonzero(~chains.closed)
        self._open = OpenBorders(heads[still], tails[still], ends[0, still], ends[1, still], region[still])
        closed = np.flatnonzero(chains.closed & ~alone).tolist()
        return [self._segments.take(int(ends[0, number])) for number in closed], closed

    def _kept(self, rings: Rings, vertices: NDArray[np.int32]) -> Rings:
        here = np.flatnonzero(rings.address < 0)
        counts = rings.count[here]
        address = self._waiting.put(vertices[ranges(-1 - rings.address[here], counts)])
        rings.address[here] = address + np.cumsum(counts) - counts
        return rings

    def _polygons(self, regions: Regions, rings: Rings, vertices: NDArray[np.int32]) -> Iterator[Polygons]:
        """Regions that have ended, in pieces of about `BLOCK` corners."""
        rings = rings.some(np.lexsort([rings.hole, rings.region]))
        before = np.cumsum(rings.count) - rings.count
        cuts = np.append(np.flatnonzero(np.diff(before // BLOCK, prepend=-1)), len(before)).tolist()
        for start, stop in itertools.pairwise(cuts):
            part = rings.some(np.arange(start, stop))
            low, high = int(part.region[0]), int(part.region[-1])
            yield Polygons(
                regions.classes[low : high + 1],
                regions.pixels[low : high + 1],
                regions.areas[low : high + 1],
                np.bincount(part.region - low),
                part.count,
                self._fetched(part, vertices),
                continued=start > 0 and int(rings.region[start - 1]) == low,
                continues=stop < len(before) and int(rings.region[stop]) == high,
            )

    def _fetched(self, rings: Rings, vertices: NDArray[np.int32]) -> NDArray[np.int32]:
        starts = np.cumsum(rings.count) - rings.count
        fetched = np.empty((int(rings.count.sum()), 2), np.int32)
        here = rings.address < 0
        counts = rings.count[here]
        fetched[ranges(starts[here], counts)] = vertices[ranges(-1 - rings.address[here], counts)]
        waiting = zip(starts[~here].tolist(), rings.address[~here].tolist(), rings.count[~here].tolist(), strict=True)
        for start, address, count in waiting:
            fetched[start : start + count] = self._waiting.take(address, count)
        return fetched


def _sums(groups: NDArray[np.intp], values: NDArray[Any], count: int) -> NDArray[np.float64]:
    return np.asarray(np.bincount(groups, values, count), np.float64)
