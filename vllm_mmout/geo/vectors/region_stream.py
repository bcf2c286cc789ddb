"""The polygons of a raster of classes, read and traced a band of rows at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.geo.vectors.corner_store import WaitingCorners
from vllm_mmout.geo.vectors.polygon import Polygons
from vllm_mmout.geo.vectors.simplify import simplified
from vllm_mmout.geo.vectors.trace import Tracer

BAND = 2**20
"""Pixels that are traced at once: some 60 bytes each where every pixel differs from its neighbours."""
BUDGET = 2**25
"""Bytes of corners that wait in memory."""


def polygons(
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
    """Trace the 4-connected regions of equal class.

    Args:
        rows: integers [any number of rows, width], from the top; below 0 nothing is a region.
        size: height and width of the raster.
        nodata: class that is no region.
        areas: of a pixel in each row, [height]; None: 1.
        simplify: how far borders may move, in pixels.
        band: rows that are traced at once; by default as many as suits the width.
        budget: bytes of corners that wait in memory; beyond it they go to a temporary file.
        folder: of that file.

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
