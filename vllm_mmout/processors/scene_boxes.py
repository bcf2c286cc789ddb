"""Join the boxes that were found in the tiles of a scene."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import DecodeError

if TYPE_CHECKING:
    from vllm_mmout.geo import TileGrid
    from vllm_mmout.outputs import Detection, DetectionOutput
    from vllm_mmout.outputs.detection import Box
    from vllm_mmout.processors.base import Part, Parts

_HELD = 0.5
"""The part of a cut-off box above which another box holds it."""
_MARGIN = 0.05
"""How far from the edge of a tile a box may end and still touch it, as a part of its side; at least one pixel."""


def joined_boxes(parts: Parts, iou_threshold: float, most: int | None) -> DetectionOutput:
    """Return the objects of a scene, the most certain first, from the boxes of its tiles.

    Where tiles overlap, an object is found more than once, and cut off by the edge of a tile.

    1. Boxes end with their tile. A box whose middle lies in the outer quarter of what two tiles share is left to the
       other tile.
    2. A box that touches an edge within the scene may be cut off. It yields to a box of its class from another tile
       that holds more than half of it, whatever the scores. Among such boxes the larger one stays.
    3. Of other boxes of one class from different tiles whose intersection over union is larger than ``iou_threshold``,
       the best stays.

    The order in which tiles come makes no difference. ``most`` limits the result to the best of the whole scene; None
    returns all.
    """
    from vllm_mmout.outputs import DetectionOutput  # with pydantic, which decoding alone needs

    found = _Found(parts.grid)
    for part in parts:
        found.add(part)
    detections = found.best(iou_threshold)
    return DetectionOutput(
        detections=detections[:most],
        units="pixels",
        size=(parts.grid.height, parts.grid.width),
        omitted=found.omitted + len(detections) - len(detections[:most]),
        keeps_flat=found.keeps_flat,
    )


class _Found:
    """What was found, compactly: a scene may have hundreds of thousands of candidates."""

    def __init__(self, grid: TileGrid) -> None:
        self._grid = grid
        self._tiles, self._kinds, self._cut = array("q"), array("q"), array("b")
        self._scores, self._boxes = array("d"), array("d")
        self._numbers: dict[tuple[int, str], int] = {}
        self.omitted = 0
        self.keeps_flat = False

    def add(self, part: Part) -> None:
        """Add the boxes of a tile, in pixels of the scene."""
        from vllm_mmout.outputs import DetectionOutput
        from vllm_mmout.outputs.detection import cut_box

        output = part.output
        window, padding = self._grid.window(part.index), self._grid.padding(part.index)
        if not isinstance(output, DetectionOutput):
            raise DecodeError(
                f"tile of {part.window or window}: got a {type(output).__name__}, only boxes of a DetectionOutput can"
                " be joined; define assemble() in the processor"
            )
        self.omitted += output.omitted
        self.keeps_flat |= output.keeps_flat
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
            edges = (window.col, window.row, window.col + window.width, window.row + window.height)
            box = cut_box((left, top, right, bottom), edges, keep_flat=output.keeps_flat)
            if box is None:
                continue
            self._tiles.append(part.index)
            self._kinds.append(self._numbers.setdefault((one.id, one.label), len(self._numbers)))
            self._scores.append(one.score)
            self._boxes.extend(box)
            self._cut.append(self._is_cut(box, edges))

    def _is_cut(self, box: Box, edges: Box) -> bool:
        """Return whether a box touches an edge of its tile that is none of the scene."""
        across, down = (max(1.0, _MARGIN * (box[2 + axis] - box[axis])) for axis in (0, 1))
        scene = (0, 0, self._grid.width, self._grid.height)
        touched = (
            box[0] <= edges[0] + across,
            box[1] <= edges[1] + down,
            box[2] >= edges[2] - across,
            box[3] >= edges[3] - down,
        )
        return any(touches and edge != end for touches, edge, end in zip(touched, edges, scene, strict=True))

    def best(self, iou_threshold: float) -> list[Detection]:
        """Return each object once, sorted by score."""
        from vllm_mmout.outputs import Detection

        tiles, kinds, cut, scores = (
            np.array(numbers) for numbers in (self._tiles, self._kinds, self._cut, self._scores)
        )
        boxes = np.array(self._boxes).reshape(-1, 4)
        areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
        # Whole boxes first, by score; then those that may be cut off, the largest first. The sort is stable: equal
        # ones of a tile keep their order.
        order = np.lexsort((tiles, -scores, np.where(cut, -areas, 0.0), cut))
        near = _Near(max(self._grid.sides) / 2)
        kept = []
        for place in order.tolist():
            cells = near.cells(int(kinds[place]), boxes[place])
            others = near.kept(cells)
            others = others[tiles[others] != tiles[place]]
            if len(others):
                overlaps, held = _shared(boxes[place], boxes[others])
                if (overlaps > iou_threshold).any() or (cut[place] and (held > _HELD).any()):
                    continue
            kept.append(place)
            near.keep(place, cells)
        kept.sort(key=lambda place: (-scores[place], tiles[place], place))
        names = list(self._numbers)
        return [
            Detection(id=number, label=label, score=score, box=tuple(box))
            for (number, label), score, box in zip(
                [names[kind] for kind in kinds[kept]], scores[kept].tolist(), boxes[kept].tolist(), strict=True
            )
        ]


class _Near:
    """Finds the boxes of a class near a box: a scene is a grid of cells, each with the boxes that lie in it."""

    def __init__(self, side: float) -> None:
        self._side = side
        self._boxes: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)

    def cells(self, kind: int, box: NDArray[np.float64]) -> list[tuple[int, int, int]]:
        """Return the cells of a class that a box lies in."""
        left, top, right, bottom = (box // self._side).astype(int).tolist()
        return [(kind, row, col) for row in range(top, bottom + 1) for col in range(left, right + 1)]

    def keep(self, number: int, cells: list[tuple[int, int, int]]) -> None:
        """Add a box."""
        for cell in cells:
            self._boxes[cell].append(number)

    def kept(self, cells: list[tuple[int, int, int]]) -> NDArray[np.intp]:
        """Return the numbers of the boxes that were added to any of the cells."""
        return np.array(list({number for cell in cells for number in self._boxes.get(cell, ())}), np.intp)


def _counting(starts: tuple[int, ...], tile: int, start: int) -> tuple[float, float]:
    """Return from where to where along an axis the middles of a tile's boxes count."""
    number = starts.index(start)
    first, last = -math.inf, math.inf
    if number:
        first = start + (starts[number - 1] + tile - start) / 4
    if number + 1 < len(starts):
        last = start + tile - (start + tile - starts[number + 1]) / 4
    return first, last


def _shared(box: NDArray[np.float64], boxes: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return of each of ``boxes`` its intersection over union with a box, and the part of the box that it holds.

    Boxes without an area that touch are taken for the same: both numbers are 1.
    """
    sides = np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2])
    common = sides.clip(min=0).prod(axis=1)
    area = (box[2:] - box[:2]).prod()
    union = area + (boxes[:, 2:] - boxes[:, :2]).prod(axis=1) - common
    touching = (sides >= 0).all(axis=1).astype(np.float64)
    overlaps = np.divide(common, union, out=touching.copy(), where=union > 0)
    held = np.divide(common, area, out=touching, where=area > 0)
    return overlaps, held
