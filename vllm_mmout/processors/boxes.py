"""Boxes: their formats, non-maximum suppression, and joining those that were found in the tiles of a scene."""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import DecodeError

if TYPE_CHECKING:
    import torch

    from vllm_mmout.geo import TileGrid
    from vllm_mmout.outputs import Detection, DetectionOutput
    from vllm_mmout.processors.base import Part, Parts


FORMATS = ("xyxy", "cxcywh", "xywh")
"""Corners; centre and size; upper left corner and size."""


def as_corners(boxes: torch.Tensor, box_format: str) -> torch.Tensor:
    """Boxes, floating point [..., 4] in one of `FORMATS`, as xmin, ymin, xmax, ymax."""
    import torch

    if box_format == "xyxy":
        return boxes
    place, size = boxes[..., :2], boxes[..., 2:]
    low = place - 0.5 * size if box_format == "cxcywh" else place
    high = place + (0.5 * size if box_format == "cxcywh" else size)
    return torch.cat([low, high], dim=-1)


def suppressed(boxes: torch.Tensor, labels: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """Which boxes are left after non-maximum suppression within each class, as ``torchvision.ops.batched_nms``.

    Of boxes [n, 4] as corners, the best first, and labels [n]: the numbers that stay, int64, in order.
    """
    import torch

    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    left = torch.arange(len(boxes))
    kept = []
    while len(left):
        best, left = left[0], left[1:]
        kept.append(int(best))
        low, high = torch.maximum(boxes[best, :2], boxes[left, :2]), torch.minimum(boxes[best, 2:], boxes[left, 2:])
        common = (high - low).clamp(min=0).prod(dim=1)
        overlap = common / (areas[best] + areas[left] - common)
        left = left[~((overlap > iou_threshold) & (labels[left] == labels[best]))]
    return torch.tensor(kept, dtype=torch.int64)


def joined_boxes(parts: Parts, iou_threshold: float, most: int) -> DetectionOutput:
    """The objects of a scene, the most certain first, of what was found in its tiles.

    Where tiles overlap an object is found more than once, and cut off by the end of a tile. Boxes with their middle in
    the outer quarter of what two tiles share are therefore left to the other tile. Then, of boxes of one class from
    different tiles whose intersection over union is larger than ``iou_threshold``, the best is left. The order in
    which tiles come makes no difference.
    """
    from vllm_mmout.outputs import DetectionOutput  # with pydantic, which decoding alone needs

    found = _Found(parts.grid)
    for part in parts:
        found.add(part)
    return DetectionOutput(
        detections=found.best(iou_threshold, most), units="pixels", size=(parts.grid.height, parts.grid.width)
    )


class _Found:
    """What was found, compactly: a scene may have hundreds of thousands of candidates."""

    def __init__(self, grid: TileGrid) -> None:
        self._grid = grid
        self._tiles, self._ids = array("q"), array("q")
        self._scores, self._boxes = array("d"), array("d")
        self._labels: dict[int, str] = {}

    def add(self, part: Part) -> None:
        """Take what was found in a tile, in pixels of the scene."""
        from vllm_mmout.outputs import DetectionOutput

        output = part.output
        window, padding = self._grid.window(part.index), self._grid.padding(part.index)
        if not isinstance(output, DetectionOutput):
            raise DecodeError(
                f"tile of {part.window or window}: got a {type(output).__name__}, only boxes of a DetectionOutput can"
                " be joined; define assemble() in the processor"
            )
        fed = (window.height + padding[0], window.width + padding[1])
        old = (1, 1) if output.units == "relative" else output.size or fed
        rows, cols = fed[0] / old[0], fed[1] / old[1]
        heights = _counting(self._grid.rows, self._grid.sides[0], window.row)
        widths = _counting(self._grid.cols, self._grid.sides[1], window.col)
        for one in output.detections:
            left, right = (edge * cols + window.col for edge in one.box[0::2])
            top, bottom = (edge * rows + window.row for edge in one.box[1::2])
            if not (heights[0] <= (top + bottom) / 2 <= heights[1] and widths[0] <= (left + right) / 2 <= widths[1]):
                continue
            self._tiles.append(part.index)
            self._ids.append(one.id)
            self._labels[one.id] = one.label
            self._scores.append(one.score)
            self._boxes.extend((left, top, right, bottom))

    def best(self, iou_threshold: float, most: int) -> list[Detection]:
        """The best that are left when none is there twice."""
        from vllm_mmout.outputs import Detection

        tiles, ids, scores = (np.array(numbers) for numbers in (self._tiles, self._ids, self._scores))
        boxes = np.array(self._boxes).reshape(-1, 4)
        right, bottom = self._grid.width, self._grid.height
        boxes = np.clip(boxes, 0.0, np.array([right, bottom, right, bottom], np.float64))
        order = np.lexsort((tiles, -scores))  # keeps the order within a tile, where scores are equal
        order = order[(boxes[order, 2:] > boxes[order, :2]).all(axis=1)]
        tiles, ids, scores, boxes = tiles[order], ids[order], scores[order], boxes[order]
        left = np.ones(len(order), np.bool_)
        kept: list[int] = []
        for place in range(len(order)):
            if len(kept) == most:
                break
            if left[place]:
                kept.append(place)
                others = (tiles != tiles[place]) & (ids == ids[place])
                left &= ~(others & (_overlaps(boxes[place], boxes) > iou_threshold))
        found = zip(ids[kept].tolist(), scores[kept].tolist(), boxes[kept].tolist(), strict=True)
        return [Detection(id=one, label=self._labels[one], score=score, box=tuple(box)) for one, score, box in found]


def _counting(starts: tuple[int, ...], tile: int, start: int) -> tuple[float, float]:
    """From where to where along an axis the middles of a tile's boxes count."""
    number = starts.index(start)
    first, last = -math.inf, math.inf
    if number:
        first = start + (starts[number - 1] + tile - start) / 4
    if number + 1 < len(starts):
        last = start + tile - (start + tile - starts[number + 1]) / 4
    return first, last


def _overlaps(one: NDArray[np.float64], boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    sides = np.minimum(one[2:], boxes[:, 2:]) - np.maximum(one[:2], boxes[:, :2])
    common = sides.clip(min=0).prod(axis=1)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    union = (one[2:] - one[:2]).prod() + areas - common
    overlaps: NDArray[np.float64] = common / union
    return overlaps
