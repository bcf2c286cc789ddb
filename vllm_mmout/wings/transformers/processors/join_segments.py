"""Join the segments of instance or panoptic segmentation across the tiles of a scene."""

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

    from vllm_mmout.processors.parts import Parts

_MAX_PIXELS = 2**29
"""Maximum number of pixels of a scene. The segment numbers of all these pixels must fit into memory."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Segment of an instance or panoptic segmentation, with its label and score."""

    label_id: int
    label: str
    score: float


def joined_segments(parts: Parts) -> tuple[NDArray[np.int32], list[Segment]]:
    """Return the segment number of each pixel of a scene, int32 [height, width], and the list of segments.

    Numbers count from 1, in the order of the segments' first pixels. Pixels without a segment are 0.

    Each pixel is taken from the tile whose centre is nearest. At the line between two tiles, segments of one label are
    joined if they touch along at least half of the shorter one's pixels at the line. The order in which tiles arrive
    makes no difference. Scores are averaged by area.
    """
    grid = parts.grid
    if grid.height * grid.width > _MAX_PIXELS:
        raise InputError(
            f"segments are joined in memory, and the scene has {grid.height} x {grid.width} pixels; ask for a smaller"
            ' window, or output="classes"'
        )
    rows, cols = _edges(grid.rows, grid.sides[0], grid.height), _edges(grid.cols, grid.sides[1], grid.width)
    canvas = np.zeros((grid.height, grid.width), np.int32)
    segments = [Segment(-1, "", 0.0)]
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
        canvas[top:bottom, left:right] = np.where(ids > 0, ids + (len(segments) - 1), 0)
        entries = json.loads(part.output.metadata["segments"])
        segments += [Segment(entry["label_id"], entry["label"], entry["score"]) for entry in entries]
    return _numbered(canvas, segments, _merged_numbers(canvas, segments, rows[1:-1], cols[1:-1]))


def _edges(starts: tuple[int, ...], side: int, length: int) -> list[int]:
    """Return the boundaries between tiles along one axis, in pixels. They are in the middle of each overlap."""
    between = [(start + before + side) // 2 for before, start in pairwise(starts)]
    return [0, *between, length]


def _merged_numbers(
    canvas: NDArray[np.int32], segments: list[Segment], rows: list[int], cols: list[int]
) -> NDArray[np.int64]:
    """Return a new number for each segment. Segments of one label that touch at a tile boundary get the same number."""
    parents = np.arange(len(segments))
    labels = np.array([segment.label_id for segment in segments])

    def root(number: int) -> int:
        while parents[number] != number:
            parents[number] = parents[parents[number]]
            number = int(parents[number])
        return number

    lines = [(canvas[row - 1], canvas[row]) for row in rows] + [(canvas[:, col - 1], canvas[:, col]) for col in cols]
    for before, after in lines:
        alike = (before > 0) & (after > 0) & (labels[before] == labels[after])
        pairs, counts = np.unique(np.stack([before[alike], after[alike]]), axis=1, return_counts=True)
        lengths = np.bincount(np.concatenate([before, after]), minlength=len(segments))
        for (first, second), count in zip(pairs.T.tolist(), counts.tolist(), strict=True):
            if 2 * count >= min(lengths[first], lengths[second]):
                low, high = sorted((root(first), root(second)))
                parents[high] = low
    return np.array([root(number) for number in range(len(segments))])


def _numbered(
    canvas: NDArray[np.int32], segments: list[Segment], roots: NDArray[np.int64]
) -> tuple[NDArray[np.int32], list[Segment]]:
    areas = np.bincount(canvas.ravel(), minlength=len(segments))
    areas[0] = 0
    joined = roots.astype(np.int32)[canvas]
    kept, firsts = np.unique(joined, return_index=True)
    kept = kept[np.argsort(firsts)]
    kept = kept[kept > 0]
    numbers = np.zeros(len(segments), np.int32)
    numbers[kept] = np.arange(1, len(kept) + 1)
    whole = np.bincount(roots, areas, minlength=len(segments))
    scores = np.bincount(roots, areas * np.array([segment.score for segment in segments]), minlength=len(segments))
    scene_segments = [
        Segment(segments[number].label_id, segments[number].label, float(scores[number] / whole[number]))
        for number in kept
    ]
    return numbers[joined], scene_segments
