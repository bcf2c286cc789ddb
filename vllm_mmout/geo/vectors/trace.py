"""Trace the polygons of a class raster, a strip of rows at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.geo.vectors.chains import Chains, connected, in_order, ranges
from vllm_mmout.geo.vectors.corner_store import BorderSegments, WaitingCorners
from vllm_mmout.geo.vectors.corners import LinkedElements, link
from vllm_mmout.geo.vectors.polygon import OpenBorders, Polygons, Regions, Rings, doubled_areas, simple_rings
from vllm_mmout.geo.vectors.simplify import simplified

BLOCK = 2**17
"""Approximate number of corners in a batch of polygons."""
BAND = 2**20
"""Approximate number of pixels in a band, a strip of raster rows that is traced at once.

Tracing may need about 60 bytes of memory per pixel."""
BUDGET = 2**25
"""Default memory limit, in bytes, for the corners of unfinished polygons. A temporary file stores corners beyond the
limit."""


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
    """Trace the 4-connected regions of equal class in a raster, and yield their polygons in batches.

    ``rows`` yields blocks of rows from the top, ``size`` is (height, width). Pixels below 0 or equal to ``nodata``
    belong to no region. ``areas`` [height] is the area of a pixel in each row, 1 if None. ``simplify`` is the distance
    in pixels that borders may move. ``band`` rows are traced at a time, by default as many as suit the width.
    If the corners of unfinished polygons exceed ``budget`` bytes, a temporary file in ``folder`` holds the rest.
    """
    step = band or max(1, BAND // size[1])
    with WaitingCorners(budget, folder) as waiting:
        tracer = Tracer(size, waiting, junctions=simplify > 0)
        row = 0
        for block in rows:
            for start in range(0, len(block), step):
                part = block[start : start + step]
                labels = part.astype(np.int32)
                if nodata is not None:
                    labels[part == nodata] = -1
                weights = None if areas is None else areas[row : row + len(part)]
                for polygons in tracer.add(labels, weights):
                    yield simplified(polygons, simplify) if simplify > 0 else polygons
                row += len(part)


class Tracer:
    """Polygon tracer that takes the rows of a class raster in order, and yields each polygon after its last row.

    A region is 4-connected: its pixels have the same class and share edges. Borders are joined along horizontal runs of
    pixels, so no image of region labels is needed, which would be as large as the raster. The two chains of border at
    the ends of a run belong to the same region. This connects all borders of a region, including those of its holes,
    since runs in adjacent rows that touch share a stretch of border, or their ends are in the same column.

    Memory holds the open borders, about 50 bytes for each closed border of an unfinished region, and 24 bytes for each
    segment that a band added to an open border. The corners themselves are in `WaitingCorners`.
    """

    def __init__(self, size: tuple[int, int], waiting: WaitingCorners, *, junctions: bool = False) -> None:
        self._height, self._width = size
        self._waiting = waiting
        self._junctions = junctions
        self._segments = BorderSegments(waiting)
        self._row = 0
        self._above = np.full(self._width + 2, -1, np.int32)
        empty64 = np.zeros(0, np.int64)
        empty32 = np.zeros(0, np.int32)
        self._open = OpenBorders(empty32, empty32, empty64, empty64, empty64)
        self._regions = Regions(empty32, empty64, np.zeros(0))
        self._rings = Rings(empty64, empty64, empty64, np.zeros(0, np.bool_))

    def add(self, labels: NDArray[np.int32], areas: NDArray[np.float64] | None = None) -> Iterator[Polygons]:
        """Trace the next raster rows, and yield the polygons that end in these rows.

        ``labels`` [rows, columns] are the classes of the pixels. Pixels of classes below 0 belong to no polygon.

        Consume the iterator completely before adding more rows.
        """
        band = self._pad_labels(labels)
        linked = link(band, self._row, self._height, self._open.heads, self._open.tails, junctions=self._junctions)
        self._row += len(labels)
        self._above = band[len(labels)].copy()
        chains = in_order(linked.following)
        region, regions = self._join_borders(band, linked, chains, areas)
        vertices, rings = self._close_rings(linked, chains, region)
        ended = np.ones(len(regions.classes), np.bool_)
        ended[self._open.region] = False
        self._rings = self._rings.followed_by(rings)
        whole = ended[self._rings.region]
        done = self._rings.select(whole)
        renumbered = np.cumsum(~ended) - 1
        self._rings = self._kept(self._rings.select(~whole), vertices).with_regions(renumbered)
        self._open = OpenBorders(
            self._open.heads, self._open.tails, self._open.first, self._open.last, renumbered[self._open.region]
        )
        self._regions = regions.select(~ended)
        yield from self._polygons(regions.select(ended), done.with_regions(np.cumsum(ended) - 1), vertices)

    def _pad_labels(self, labels: NDArray[np.int32]) -> NDArray[np.int32]:
        """Pad the labels of new rows: on the left and right with -1, and above with the previous raster row.

        If ``labels`` end with the raster's last row, a row of -1 is added below.
        """
        rows = len(labels)
        last = self._row + rows == self._height
        band = np.full((rows + 1 + last, self._width + 2), -1, np.int32)
        band[0] = self._above
        band[1 : rows + 1, 1:-1] = labels
        return band

    def _join_borders(
        self, band: NDArray[np.int32], linked: LinkedElements, chains: Chains, areas: NDArray[np.float64] | None
    ) -> tuple[NDArray[np.intp], Regions]:
        """Join the borders in ``chains`` that belong to the same region. ``band`` holds the labels of the new rows.

        Return the region index of each border in ``chains``, and the table of the regions. Regions of earlier rows get
        new indices, which also replace the old indices in ``self._rings``.
        """
        rows, cols = np.nonzero(band[1:, 1:] != band[1:, :-1])
        runs = np.flatnonzero(band[rows + 1, cols + 1] >= 0)
        rows, cols, ends = rows[runs], cols[runs], cols[runs + 1] if len(runs) else cols[runs]
        lefts, rights = linked.left.indices_at(rows, cols), linked.right.indices_at(rows, ends)
        chain = chains.chain[linked.left.upper[lefts]]
        # If a run's left border comes straight down, the runs above it have already connected the chains at its ends.
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
        self._rings = self._rings.with_regions(of_old)
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

    def _close_rings(
        self, linked: LinkedElements, chains: Chains, region: NDArray[np.intp]
    ) -> tuple[NDArray[np.int32], Rings]:
        """Find the borders in ``chains`` that are closed rings now. Keep the unfinished borders for later rows.

        Return the corners of all rings that were closed by the rows just added, and the table of these rings.
        """
        stretches = len(linked.starts) - 1
        counts = np.zeros(len(chains.order), np.int64)
        counts[:stretches] = np.diff(linked.starts)
        order = chains.order
        band_elements = order[order < stretches]
        vertices = linked.vertices[ranges(linked.starts[band_elements], counts[band_elements])]
        ends = np.append(0, np.cumsum(counts[order]))[chains.starts]
        opened = np.bincount(chains.chain[stretches : stretches + len(self._open.heads)], minlength=len(chains.closed))
        alone = chains.closed & (opened == 0)
        sizes = np.diff(ends)
        inside = np.repeat(alone, sizes)
        rings, ring_chains = self._extend_borders(linked, chains, region, alone, vertices[~inside])
        corners = np.concatenate([vertices[inside], *rings])
        numbers = np.concatenate([np.flatnonzero(alone), np.array(ring_chains, np.int64)])
        lengths = np.concatenate([sizes[alone], np.array([len(ring) for ring in rings], np.int64)])
        corners, lengths, origin = simple_rings(corners, lengths)
        starts = np.cumsum(lengths) - lengths
        bare = corners >> np.array([2, 0], np.int32)
        return corners, Rings(region[numbers[origin]], -1 - starts, lengths, doubled_areas(bare, lengths) < 0)

    def _extend_borders(
        self,
        linked: LinkedElements,
        chains: Chains,
        region: NDArray[np.intp],
        alone: NDArray[np.bool_],
        vertices: NDArray[np.int32],
    ) -> tuple[list[NDArray[np.int32]], list[int]]:
        """Add the corners of the new rows to the unfinished borders of earlier rows.

        Return the corners of each border that is closed now, and the index of each of these borders in ``chains``.
        Borders marked in ``alone`` are skipped: they are closed and entirely within the new rows. ``vertices`` are the
        new corners of the other borders.
        """
        stretches, before = len(linked.starts) - 1, self._open
        order = chains.order[~alone[chains.chain[chains.order]]]
        order = order[order < stretches + len(before.heads)]  # without ports
        chain = chains.chain[order]
        earlier = order >= stretches
        starts = np.ones(len(order), np.bool_)
        starts[1:] = earlier[1:] | earlier[:-1] | (chain[1:] != chain[:-1])
        # An item is an open border from above, or consecutive stretches of the band.
        item, item_chain, old = np.flatnonzero(starts), chain[starts], earlier[starts]
        counts = np.zeros(len(order), np.int64)
        counts[~earlier] = np.diff(linked.starts)[order[~earlier]]
        sizes = np.add.reduceat(counts, item) if len(item) else counts
        first = np.empty(len(item), np.intp)
        last = np.empty(len(item), np.intp)
        border = order[item[old]] - stretches
        first[old], last[old] = before.first[border], before.last[border]
        first[~old] = last[~old] = self._segments.put(vertices, sizes[~old])
        follows = np.flatnonzero(item_chain[1:] == item_chain[:-1])
        self._segments.join(last[follows], first[follows + 1])
        begin = np.ones(len(item_chain), np.bool_)
        begin[1:] = item_chain[1:] != item_chain[:-1]
        end = np.append(begin[1:], True)[: len(item_chain)]
        ends = np.zeros((4, len(chains.closed)), np.intp)
        ends[0, item_chain[begin]], ends[1, item_chain[end]] = first[begin], last[end]
        ports = stretches + len(before.heads)
        up, down = np.split(chains.chain[ports:], [len(linked.ports_up)])
        ends[2, up], ends[3, down] = linked.ports_up, linked.ports_down
        heads, tails = ends[2:].astype(np.int32)
        unclosed = np.flatnonzero(~chains.closed)
        self._open = OpenBorders(
            heads[unclosed], tails[unclosed], ends[0, unclosed], ends[1, unclosed], region[unclosed]
        )
        closed = np.flatnonzero(chains.closed & ~alone).tolist()
        return [self._segments.take(int(ends[0, number])) for number in closed], closed

    def _kept(self, rings: Rings, vertices: NDArray[np.int32]) -> Rings:
        here = np.flatnonzero(rings.address < 0)
        counts = rings.count[here]
        address = self._waiting.put(vertices[ranges(-1 - rings.address[here], counts)])
        rings.address[here] = address + np.cumsum(counts) - counts
        return rings

    def _polygons(self, regions: Regions, rings: Rings, vertices: NDArray[np.int32]) -> Iterator[Polygons]:
        """Yield the polygons of ``regions`` in batches of about `BLOCK` corners."""
        rings = rings.select(np.lexsort([rings.hole, rings.region]))
        before = np.cumsum(rings.count) - rings.count
        cuts = np.append(np.flatnonzero(np.diff(before // BLOCK, prepend=-1)), len(before)).tolist()
        for start, stop in itertools.pairwise(cuts):
            part = rings.select(np.arange(start, stop))
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
