"""Joining boxes over tiles: an object that one tile holds whole comes back once, wherever it lies."""

from __future__ import annotations

import numpy as np
import pytest

from vllm_mmout.geo import TileGrid
from vllm_mmout.outputs import Source
from vllm_mmout.processors.part import Part
from vllm_mmout.processors.parts import Parts

pytest.importorskip("pydantic", reason="pydantic comes with the engine")

from vllm_mmout.outputs import Detection, DetectionOutput
from vllm_mmout.processors.scene_boxes import joined_boxes


def joined(grid: TileGrid, tiles: dict[int, DetectionOutput], most: int | None = None) -> DetectionOutput:
    parts = [Part(index, grid.window(index), output) for index, output in tiles.items()]
    return joined_boxes(Parts(parts, grid=grid, source=Source(size=(grid.height, grid.width))), 0.5, most)


def seen(grid: TileGrid, objects: np.ndarray) -> dict[int, DetectionOutput]:
    """What a perfect detector finds in each tile, pieces of objects included; the object's number is its class.

    Of every second object a piece has the higher score.
    """
    tiles = {}
    for index in range(len(grid)):
        window = grid.window(index)
        cut = np.clip(objects - (window.col, window.row) * 2, 0, (window.width, window.height) * 2)
        whole = ((objects[:, 2:] - objects[:, :2]) == (cut[:, 2:] - cut[:, :2])).all(axis=1)
        detections = [
            Detection.model_construct(
                id=number, label="", score=0.9 if whole[number] == number % 2 else 0.6, box=tuple(cut[number].tolist())
            )
            for number in np.flatnonzero((cut[:, 2:] > cut[:, :2]).all(axis=1)).tolist()
        ]
        tiles[index] = DetectionOutput.model_construct(detections=detections)
    return tiles


@pytest.mark.parametrize(("side", "overlap"), [(20, 24), (32, 32), (24, 24)])
def test_an_object_that_a_tile_holds_whole_is_found_once_at_every_place(side, overlap):
    """A square at every offset from the seams of a scene of three by three tiles gives that square alone."""
    grid = TileGrid(64 + 2 * (64 - overlap), 64 + 2 * (64 - overlap), 64, overlap)
    places = np.arange(64 - overlap - side, 64 + 1)  # from wholly before to wholly behind what two tiles share
    rows, cols = (axis.ravel() for axis in np.meshgrid(places[places >= 0], places[places >= 0], indexing="ij"))
    objects = np.stack([cols, rows, cols + side, rows + side], axis=1).astype(float)
    found = joined(grid, seen(grid, objects)).detections
    assert sorted((one.id, *one.box) for one in found) == [(k, *box) for k, box in enumerate(objects.tolist())]


def test_a_piece_yields_to_the_box_that_holds_most_of_it():
    """A box at an inner edge of its tile goes, whatever its score, if another tile's box of its class holds it."""
    grid = TileGrid(100, 180, 100, 40)  # tiles begin at columns 0, 60 and 80
    whole = Detection(id=1, label="a", score=0.5, box=(6, 10, 36, 40))
    piece = Detection(id=1, label="a", score=0.9, box=(66, 12, 99.5, 39))
    other = Detection(id=2, label="b", score=0.9, box=(66, 12, 99.5, 39))
    result = joined(grid, {0: DetectionOutput(detections=[piece, other]), 1: DetectionOutput(detections=[whole])})
    assert [(one.id, one.box) for one in result.detections] == [(2, (66, 12, 99.5, 39)), (1, (66, 10, 96, 40))]


def test_a_whole_box_within_another_stays():
    """A small object within a large one of its class is no piece of it."""
    grid = TileGrid(100, 180, 100, 40)
    large = Detection(id=1, label="a", score=0.5, box=(65, 10, 95, 60))
    small = Detection(id=1, label="a", score=0.9, box=(15, 30, 25, 40))
    result = joined(grid, {0: DetectionOutput(detections=[large]), 1: DetectionOutput(detections=[small])})
    assert len(result.detections) == 2


def test_labels_of_one_number_stay_apart():
    """Two labels with one class number are not joined, and keep their names."""
    grid = TileGrid(100, 180, 100, 40)
    tiles = {
        0: DetectionOutput(detections=[Detection(id=5, label="a", score=0.9, box=(70, 10, 80, 20))]),
        1: DetectionOutput(detections=[Detection(id=5, label="b", score=0.8, box=(10, 10, 20, 20))]),
    }
    assert [one.label for one in joined(grid, tiles).detections] == ["a", "b"]


def test_a_limit_keeps_the_best_of_the_scene_and_counts_the_rest():
    """Without a limit all come; with one the best of all tiles, and ``omitted`` counts those left out."""
    grid = TileGrid(100, 500, 100, 0)

    def tile(index: int) -> DetectionOutput:
        boxes = [(5.0 + 9 * (k % 9), 5.0 + 9 * (k // 9), 9.0 + 9 * (k % 9), 9.0 + 9 * (k // 9)) for k in range(80)]
        scores = [0.5 + 0.001 * ((k * 37 + index * 11) % 400) for k in range(80)]
        rows = zip(boxes, scores, strict=True)
        return DetectionOutput(
            detections=[Detection(id=0, label="a", score=score, box=box) for box, score in rows], omitted=index
        )

    tiles = {index: tile(index) for index in range(len(grid))}
    every = joined(grid, tiles)
    assert (len(every.detections), every.omitted) == (400, 0 + 1 + 2 + 3 + 4)
    best = joined(grid, tiles, most=150)
    assert best.detections == every.detections[:150]
    assert best.omitted == 10 + 250


def test_boxes_without_an_area_are_kept_where_their_processor_keeps_them():
    """Of one in two tiles one stays; an output that does not keep them loses both."""
    grid = TileGrid(100, 180, 100, 40)
    flat = {0: (70.0, 10.0, 70.0, 20.0), 1: (10.0, 10.0, 10.0, 20.0)}
    for keeps, count in ((True, 1), (False, 0)):
        tiles = {
            index: DetectionOutput(detections=[Detection(id=0, label="", score=0.9, box=box)], keeps_flat=keeps)
            for index, box in flat.items()
        }
        result = joined(grid, tiles)
        assert len(result.detections) == count
        assert len(result.placed(Source(size=(100, 180))).detections) == count
