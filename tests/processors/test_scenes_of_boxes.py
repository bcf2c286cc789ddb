"""Detection of scenes: each object once, as from one large input."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from tiles_for_tests import shuffled

from vllm_mmout.errors import DecodeError
from vllm_mmout.geo import Georeference, TileGrid, area_of, axis_weights, placed_area
from vllm_mmout.outputs import Detection, DetectionOutput, TensorOutput
from vllm_mmout.outputs.base import Source
from vllm_mmout.params import OutputParams
from vllm_mmout.processors import DetectionProcessor, Part, Parts
from vllm_mmout.processors.boxes import suppressed

pytestmark = pytest.mark.engine
GRID = TileGrid(100, 180, 100, 20)  # tiles begin at columns 0 and 80


def joined(processor: DetectionProcessor, found: dict[int, DetectionOutput], grid: TileGrid = GRID) -> DetectionOutput:
    parts = [Part(index, grid.window(index), output) for index, output in found.items()]
    source = Source(size=(grid.height, grid.width))
    return processor.assemble(Parts(parts, grid=grid, source=source), OutputParams(overlap=grid.overlap))


def boxes(*found: tuple[float, int, tuple[float, ...]], **known: object) -> DetectionOutput:
    return DetectionOutput(
        detections=[Detection(id=number, label=f"c{number}", score=score, box=box) for score, number, box in found],
        **known,
    )


def test_an_object_found_in_two_tiles_is_there_once():
    """Of boxes of one class that lie on each other the best is left, in pixels of the scene."""
    result = joined(
        DetectionProcessor(),
        {0: boxes((0.8, 1, (82, 10, 98, 30)), (0.7, 2, (82, 10, 99, 30))), 1: boxes((0.9, 1, (2, 10, 19, 30)))},
    )
    assert [(one.score, one.id, one.label, one.box) for one in result.detections] == [
        (0.9, 1, "c1", (82, 10, 99, 30)),
        (0.7, 2, "c2", (82, 10, 99, 30)),
    ]
    assert (result.units, result.size) == ("pixels", (100, 180))


def test_boxes_of_one_tile_do_not_suppress_each_other():
    """What the model said twice of one tile stays, as it does without tiles."""
    twice = boxes((0.9, 1, (2, 10, 19, 30)), (0.8, 1, (2, 10, 19, 30)))
    assert len(joined(DetectionProcessor(), {0: twice}).detections) == 2


@pytest.mark.parametrize(("threshold", "left"), [(None, 2), (0.3, 1), (0.4, 2)])
def test_the_processors_threshold_holds_across_tiles(threshold, left):
    """Boxes with an intersection over union of a third are one object where the option says so."""
    found = {0: boxes((0.8, 1, (80, 0, 90, 20))), 1: boxes((0.9, 1, (5, 0, 15, 20)))}
    assert len(joined(DetectionProcessor(iou_threshold=threshold), found).detections) == left


def test_the_best_of_all_tiles_are_returned_in_any_order():
    """Boxes of a crowded scene equal those that suppression in the whole scene leaves, the best first."""
    grid = TileGrid(300, 300, 100, 20)
    draw = random.Random(0)  # noqa: S311 - boxes
    found, flat = {}, []
    for index in range(len(grid)):
        mine = []
        for _ in range(40):
            left, top = draw.uniform(2, 77), draw.uniform(2, 77)  # no box touches an edge of its tile
            box = (left, top, left + draw.uniform(5, 20), top + draw.uniform(5, 20))
            mine.append((round(draw.random(), 2), draw.randrange(2), box))
        window = grid.window(index)
        kept = suppressed(*_tensors(sorted(mine, reverse=True)), 0.2)  # as decode does it
        mine = [sorted(mine, reverse=True)[place] for place in kept]
        found[index] = boxes(*mine)
        flat += [
            (score, number, tuple(np.add(box, (window.col, window.row) * 2).tolist()))
            for score, number, box in mine
            if counts(grid, index, (box[1] + box[3]) / 2, (box[0] + box[2]) / 2)
        ]
    flat.sort(key=lambda one: -one[0])
    expected = [flat[place] for place in suppressed(*_tensors(flat), 0.2)][:25]
    processor = DetectionProcessor(iou_threshold=0.2, max_detections=25)
    for seed in range(3):
        tiles = {part.index: part.output for part in shuffled([Part(k, None, found[k]) for k in found], seed)}
        result = joined(processor, tiles, grid)
        assert [(one.score, one.id, one.box) for one in result.detections] == expected


def counts(grid: TileGrid, index: int, row: float, col: float) -> bool:
    """Whether a tile's values have a weight at a point of it."""
    at = divmod(index, len(grid.cols))
    axes = ((grid.rows, grid.height, row), (grid.cols, grid.width, col))
    return all(
        axis_weights(starts, grid.tile, size, "linear")[tile][int(place)] > 0
        for tile, (starts, size, place) in zip(at, axes, strict=True)
    )


def _tensors(found: list) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([box for _, _, box in found], dtype=torch.float64), torch.tensor([one[1] for one in found])


def test_what_a_tile_cuts_off_is_left_to_the_other():
    """A piece at the end of a tile is no object of its own, whatever its score; at the scene's edge it is one."""
    whole, piece, rim = (0.6, 1, (12, 10, 28, 30)), (0.9, 1, (92, 10, 100, 30)), (0.5, 1, (0, 90, 4, 100))
    result = joined(DetectionProcessor(), {0: boxes(piece, rim), 1: boxes(whole)})
    assert [one.box for one in result.detections] == [(92, 10, 108, 30), (0, 90, 4, 100)]
    other_piece = (0.9, 1, (0, 10, 8, 30))
    result = joined(DetectionProcessor(), {0: boxes((0.6, 1, (72, 10, 88, 30))), 1: boxes(other_piece)})
    assert [one.box for one in result.detections] == [(72, 10, 88, 30)]


@pytest.mark.parametrize("seed", range(4))
def test_objects_smaller_than_the_overlap_are_found_as_in_the_whole_scene(seed):
    """What a perfect detector sees of each tile, pieces included, joined is what it sees of the whole scene."""
    grid = TileGrid(170, 330, 100, 24, "shift")
    draw = random.Random(seed)  # noqa: S311 - boxes
    objects = []
    for row in range(0, 150, 25):  # apart, as an object may lie anywhere but on another
        for col in range(0, 310, 25):
            left, top = col + draw.uniform(0, 4), row + draw.uniform(0, 4)
            objects.append((left, top, left + draw.uniform(4, 20), top + draw.uniform(4, 20)))
    found = {}
    for index in range(len(grid)):
        window = grid.window(index)
        corner = np.array((window.col, window.row) * 2)
        seen = [np.clip(np.subtract(box, corner), 0, 100) for box in objects]
        whole = [
            (0.9 if (one == np.subtract(box, corner)).all() else 0.8) for one, box in zip(seen, objects, strict=True)
        ]
        found[index] = boxes(
            *((score, 0, tuple(one)) for score, one in zip(whole, seen, strict=True) if (one[2:] > one[:2]).all())
        )
    result = joined(DetectionProcessor(), found, grid)
    np.testing.assert_allclose(sorted(one.box for one in result.detections), sorted(objects), rtol=1e-9)


def test_relative_boxes_become_pixels_of_the_scene():
    """Parts of a tile's width and height count from its corner, padding included."""
    grid = TileGrid(90, 180, 100, 20, "pad")
    result = joined(DetectionProcessor(), {1: boxes((0.9, 0, (0.1, 0.2, 0.5, 0.4)), units="relative")}, grid)
    assert result.detections[0].box == (90, 20, 130, 40)
    half = joined(DetectionProcessor(), {1: boxes((0.9, 0, (5, 10, 25, 20)), size=(50, 50))}, grid)
    assert half.detections[0].box == (90, 20, 130, 40)


def test_boxes_end_with_the_scene():
    """What was found beyond the scene, in a tile that was filled up, is cut off or left out."""
    grid = TileGrid(90, 180, 100, 20, "pad")
    found = boxes((0.9, 0, (10, 80, 20, 99)), (0.8, 0, (10, 91, 20, 99)))
    assert [one.box for one in joined(DetectionProcessor(), {0: found}, grid).detections] == [(10, 80, 20, 90)]


def test_a_scene_without_objects_is_an_empty_result():
    """Nothing found in any tile is no error."""
    assert joined(DetectionProcessor(), {0: boxes(), 1: boxes()}).detections == []


def test_outputs_that_are_no_boxes_are_refused():
    """The error names the window and what came instead."""
    with pytest.raises(DecodeError, match="columns 80 to 179: got a TensorOutput"):
        joined(DetectionProcessor(), {1: TensorOutput(np.zeros(2))})


def test_a_single_part_is_left_as_it_is():
    """An input that fits one forward is not touched."""
    found = boxes((0.9, 0, (10, 80, 20, 99)))
    assert DetectionProcessor().assemble(iter([Part(0, None, found)]), OutputParams()) is found


@pytest.mark.parametrize("most", [None, 1])
def test_boxes_outside_an_area_are_left_out(most):
    """Their centre decides. The limit of the number of boxes counts those inside only."""
    triangle = '{"type": "Polygon", "coordinates": [[[20, -20], [120, -20], [20, -90], [20, -20]]], "crs": null}'
    area = placed_area(area_of(triangle), Georeference(transform=(1, 0, 0, 0, -1, 0)), (100, 180), "x")
    found = {
        0: boxes((0.9, 1, (0, 0, 39, 60)), (0.8, 2, (20, 30, 60, 50)), (0.7, 3, (60, 60, 70, 80))),
        1: boxes((0.6, 2, (22, 22, 30, 28))),
    }
    parts = [Part(index, GRID.window(index), output) for index, output in found.items()]
    source = Source(size=(GRID.height, GRID.width), area=area)
    scene = DetectionProcessor(max_detections=most).assemble(Parts(parts, grid=GRID, source=source), OutputParams())
    assert [item.score for item in scene.detections] == [0.8, 0.6][:most]
    assert [item.score for item in found[0].placed(source).detections] == [0.8]
