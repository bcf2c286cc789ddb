"""Join the boxes that were detected in the tiles of a scene, so that each object is returned once."""

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
    from vllm_mmout.processors.part import Part
    from vllm_mmout.processors.parts import Parts

_CONTAINED = 0.5
"""Maximum fraction of a cut-off box that a box from another tile may cover. If the fraction is larger, the cut-off box
is dropped as a duplicate."""
_MARGIN = 0.05
"""Fraction of a box's side. If the distance from the box to an edge of its tile is at most this fraction of the side,
the box counts as cut off by the edge.

A box within 1 pixel of the edge always counts as cut off."""


def joined_boxes(parts: Parts, iou_threshold: float, most: int | None) -> DetectionOutput:
    """Join the boxes detected in the tiles of a scene into one list of objects, the highest score first.

    Where tiles overlap, an object is found more than once, and the edge of a tile may cut it off.

    1. Boxes are clipped to their tile. A box whose centre lies in the outer quarter of the overlap of two tiles is
       left to the other tile.
    2. A box that touches an edge within the scene may be cut off. It is dropped if a box of its class from another
       tile contains more than half of it, whatever the scores. Among such boxes the larger is kept.
    3. Among other boxes of a class from different tiles whose intersection over union is larger than
       ``iou_threshold``, the box with the highest score is kept.

    Boxes whose centre is outside the request's area of interest are left out.

    The order in which tiles arrive makes no difference. ``most`` limits the result to the best boxes of the whole
    scene; None returns all.
    """
    from vllm_mmout.outputs import DetectionOutput  # imports pydantic, which only decoding needs
    from vllm_mmout.outputs.detection import inside

    boxes = _SceneBoxes(parts.grid)
    for part in parts:
        boxes.add(part)
    detections = boxes.best(iou_threshold)
    if parts.source.area is not None:
        detections = inside(detections, parts.source.area)
    return DetectionOutput(
        detections=detections[:most],
        units="pixels",
        size=(parts.grid.height, parts.grid.width),
        omitted=boxes.omitted + len(detections) - len(detections[:most]),
        keeps_flat=boxes.keeps_flat,
    )


class _SceneBoxes:
    """Boxes detected in all tiles so far, kept in flat arrays because there may be hundreds of thousands."""

    def __init__(self, grid: TileGrid) -> None:
        self._grid = grid
        self._tiles, self._kinds, self._cut = array("q"), array("q"), array("b")
        self._scores, self._boxes = array("d"), array("d")
        self._numbers: dict[tuple[int, str], int] = {}
        self.omitted = 0
        self.keeps_flat = False

    def add(self, part: Part) -> None:
        """Add the boxes of a tile, converted to pixels of the scene."""
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
        size = (1, 1) if output.units == "relative" else output.size or fed
        rows, cols = fed[0] / size[0], fed[1] / size[1]
        heights = _centre_range(self._grid.rows, self._grid.sides[0], window.row)
        widths = _centre_range(self._grid.cols, self._grid.sides[1], window.col)
        for detection in output.detections:
            left, right = (edge * cols + window.col for edge in detection.box[0::2])
            top, bottom = (edge * rows + window.row for edge in detection.box[1::2])
            if not (heights[0] <= (top + bottom) / 2 <= heights[1] and widths[0] <= (left + right) / 2 <= widths[1]):
                continue
            edges = (window.col, window.row, window.col + window.width, window.row + window.height)
            box = cut_box((left, top, right, bottom), edges, keep_flat=output.keeps_flat)
            if box is None:
                continue
            self._tiles.append(part.index)
            self._kinds.append(self._numbers.setdefault((detection.id, detection.label), len(self._numbers)))
            self._scores.append(detection.score)
            self._boxes.extend(box)
            self._cut.append(self._is_cut(box, edges))

    def _is_cut(self, box: Box, edges: Box) -> bool:
        """Return whether ``box`` may be cut off by an edge of its tile. Edges on the border of the scene do not count.

        A box may be cut off if it touches the edge or comes close to it.
        """
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
        """Return the best detection of each object, the highest score first.

        Overlapping tiles may have several detections of an object.
        """
        from vllm_mmout.outputs import Detection

        tiles, kinds, cut, scores = (
            np.array(numbers) for numbers in (self._tiles, self._kinds, self._cut, self._scores)
        )
        boxes = np.array(self._boxes).reshape(-1, 4)
        areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
        # Whole boxes first, by score, then boxes that may be cut off, the largest first. The sort is stable: equal
        # boxes of a tile keep their order.
        order = np.lexsort((tiles, -scores, np.where(cut, -areas, 0.0), cut))
        near = _BoxIndex(max(self._grid.sides) / 2)
        kept = []
        for place in order.tolist():
            cells = near.cells(int(kinds[place]), boxes[place])
            others = near.boxes_in(cells)
            others = others[tiles[others] != tiles[place]]
            if len(others):
                overlaps, held = _overlaps(boxes[place], boxes[others])
                if (overlaps > iou_threshold).any() or (cut[place] and (held > _CONTAINED).any()):
                    continue
            kept.append(place)
            near.add(place, cells)
        kept.sort(key=lambda place: (-scores[place], tiles[place], place))
        names = list(self._numbers)
        return [
            Detection(id=number, label=label, score=score, box=tuple(box))
            for (number, label), score, box in zip(
                [names[kind] for kind in kinds[kept]], scores[kept].tolist(), boxes[kept].tolist(), strict=True
            )
        ]


class _BoxIndex:
    """Spatial index of boxes: a grid of cells over the scene. Each cell lists the boxes that overlap it, by class."""

    def __init__(self, side: float) -> None:
        self._side = side
        self._boxes: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)

    def cells(self, kind: int, box: NDArray[np.float64]) -> list[tuple[int, int, int]]:
        """Return the grid cells, as (class, row, column), that a box of class ``kind`` overlaps."""
        left, top, right, bottom = (box // self._side).astype(int).tolist()
        return [(kind, row, col) for row in range(top, bottom + 1) for col in range(left, right + 1)]

    def add(self, number: int, cells: list[tuple[int, int, int]]) -> None:
        for cell in cells:
            self._boxes[cell].append(number)

    def boxes_in(self, cells: list[tuple[int, int, int]]) -> NDArray[np.intp]:
        """Return the indices of the boxes that are listed in at least one of the grid cells ``cells``."""
        return np.array(list({number for cell in cells for number in self._boxes.get(cell, ())}), np.intp)


def _centre_range(starts: tuple[int, ...], tile: int, start: int) -> tuple[float, float]:
    """Return a range of box centres along one axis, as (lowest, highest) coordinates.

    Boxes whose centre is in the range are taken from the tile at ``start``, and other boxes from the neighbouring
    tiles. ``starts`` are the positions of all tiles along the axis, and ``tile`` is the length of a tile.
    """
    number = starts.index(start)
    first, last = -math.inf, math.inf
    if number:
        first = start + (starts[number - 1] + tile - start) / 4
    if number + 1 < len(starts):
        last = start + tile - (start + tile - starts[number + 1]) / 4
    return first, last


def _overlaps(box: NDArray[np.float64], boxes: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return two measures of the overlap of ``box`` with each of ``boxes``, as two arrays.

    The first measure is the intersection over union. The second measure is the fraction of the area of ``box`` that
    the other box covers. Touching boxes without an area count as equal: both measures are 1.
    """
    sides = np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2])
    common = sides.clip(min=0).prod(axis=1)
    area = (box[2:] - box[:2]).prod()
    union = area + (boxes[:, 2:] - boxes[:, :2]).prod(axis=1) - common
    touching = (sides >= 0).all(axis=1).astype(np.float64)
    overlaps = np.divide(common, union, out=touching.copy(), where=union > 0)
    held = np.divide(common, area, out=touching, where=area > 0)
    return overlaps, held
