"""The segments of a scene, of those that were found in its tiles."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from vllm_mmout.errors import DecodeError, InputError
from vllm_mmout.outputs import RasterOutput

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vllm_mmout.processors.base import Parts

_MOST_PIXELS = 2**29
"""Of a scene: its numbers are in memory."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment."""

    label_id: int
    label: str
    score: float


def joined_segments(parts: Parts) -> tuple[NDArray[np.int32], list[Segment]]:
    """The numbers of a scene's segments, int32 [height, width], from 1 in the order of their first pixels; and these.

    Each pixel is of the tile in whose middle it lies. Where two tiles meet so, two segments of one label are one if at
    least half of what the shorter has there lies against the other. The order in which tiles come makes no difference.
    Scores are averaged by area.
    """
    grid = parts.grid
    if grid.height * grid.width > _MOST_PIXELS:
        raise InputError(
            f"segments are joined in memory, and the scene has {grid.height} x {grid.width} pixels; ask for a smaller"
            ' window, or output="classes"'
        )
    rows, cols = _edges(grid.rows, grid.sides[0], grid.height), _edges(grid.cols, grid.sides[1], grid.width)
    canvas = np.zeros((grid.height, grid.width), np.int32)
    found = [Segment(-1, "", 0.0)]
    for part in parts:
        if not isinstance(part.output, RasterOutput):
            raise DecodeError(f"got a {type(part.output).__name__} of a tile, only rasters of segments can be joined")
        window = grid.window(part.index)
        row, col = divmod(part.index, len(grid.cols))
        top, bottom, left, right = rows[row], rows[row + 1], cols[col], cols[col + 1]
        inner = np.s_[top - window.row : bottom - window.row, left - window.col : right - window.col]
        ids = part.output.array[0][inner].astype(np.int32)
        if part.valid is not None:
            ids[~part.valid[inner]] = 0
        canvas[top:bottom, left:right] = np.where(ids > 0, ids + (len(found) - 1), 0)
        told = json.loads(part.output.metadata["segments"])
        found += [Segment(one["label_id"], one["label"], one["score"]) for one in told]
    return _numbered(canvas, found, _joined(canvas, found, rows[1:-1], cols[1:-1]))


def _edges(starts: tuple[int, ...], side: int, length: int) -> list[int]:
    """Where the middle of each tile begins, and the end of the last."""
    between = [(start + before + side) // 2 for before, start in pairwise(starts)]
    return [0, *between, length]


def _joined(canvas: NDArray[np.int32], found: list[Segment], rows: list[int], cols: list[int]) -> NDArray[np.int64]:
    """For each number that of the segment which it is joined to, itself of most."""
    parents = np.arange(len(found))
    labels = np.array([one.label_id for one in found])

    def root(number: int) -> int:
        while parents[number] != number:
            parents[number] = parents[parents[number]]
            number = int(parents[number])
        return number

    lines = [(canvas[row - 1], canvas[row]) for row in rows] + [(canvas[:, col - 1], canvas[:, col]) for col in cols]
    for one, other in lines:
        alike = (one > 0) & (other > 0) & (labels[one] == labels[other])
        pairs, counts = np.unique(np.stack([one[alike], other[alike]]), axis=1, return_counts=True)
        lengths = np.bincount(np.concatenate([one, other]), minlength=len(found))
        for (first, second), count in zip(pairs.T.tolist(), counts.tolist(), strict=True):
            if 2 * count >= min(lengths[first], lengths[second]):
                low, high = sorted((root(first), root(second)))
                parents[high] = low
    return np.array([root(number) for number in range(len(found))])


def _numbered(
    canvas: NDArray[np.int32], found: list[Segment], roots: NDArray[np.int64]
) -> tuple[NDArray[np.int32], list[Segment]]:
    areas = np.bincount(canvas.ravel(), minlength=len(found))
    areas[0] = 0
    joined = roots.astype(np.int32)[canvas]
    there, firsts = np.unique(joined, return_index=True)
    there = there[np.argsort(firsts)]
    there = there[there > 0]
    numbers = np.zeros(len(found), np.int32)
    numbers[there] = np.arange(1, len(there) + 1)
    whole = np.bincount(roots, areas, minlength=len(found))
    scores = np.bincount(roots, areas * np.array([one.score for one in found]), minlength=len(found))
    segments = [
        Segment(found[number].label_id, found[number].label, float(scores[number] / whole[number])) for number in there
    ]
    return numbers[joined], segments
