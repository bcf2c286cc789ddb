"""Instance and panoptic segments: those of transformers for a picture, joined over the tiles of a scene."""

from __future__ import annotations

import inspect
import json

import numpy as np
import pytest
import rasterio
import torch
from model_folders import engine_here
from PIL import Image
from rasterio.transform import Affine
from segmenting_heads import segmenting
from small_heads import saved

from vllm_mmout import OutputParams
from vllm_mmout.errors import OptionError
from vllm_mmout.geo import TileGrid
from vllm_mmout.outputs import RasterOutput, Source
from vllm_mmout.processors.part import Part
from vllm_mmout.processors.parts import Parts
from vllm_mmout.wings.transformers.processors.join_segments import joined_segments
from vllm_mmout.wings.transformers.processors.segments import ImageSegmentationProcessor

pytestmark = pytest.mark.engine
RANDOM = np.random.default_rng(4)
PICTURES = [
    Image.fromarray(RANDOM.integers(0, 256, (height, width, 3), np.uint8)) for height, width in ((80, 112), (64, 64))
]
ARCHITECTURES = (
    "Mask2FormerForUniversalSegmentation",
    "MaskFormerForInstanceSegmentation",
    "DetrForSegmentation",
    "EomtForUniversalSegmentation",
)
THRESHOLD = 0.3


def started(architecture, folder, task):
    model, processor = segmenting(architecture)
    options = {"task": task, "threshold": THRESHOLD}
    return engine_here(saved(folder, model, processor), additional_config={"mmout": options}), model, processor


def by_transformers(model, processor, picture):
    features = processor(picture, return_tensors="pt")
    known = inspect.signature(model.forward).parameters
    with torch.inference_mode():
        return model(**{name: value for name, value in features.items() if name in known})


@pytest.mark.parametrize("task", ["panoptic", "instance"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_segments_are_those_of_transformers(architecture, task, tmp_path):
    """Pixels, labels and scores, in a batch of two sizes; and the classes of the same model."""
    llm, model, processor = started(architecture, tmp_path, task)
    found = [result.outputs for result in llm.generate(PICTURES, use_tqdm=False)]
    classes = [result.outputs for result in llm.generate(PICTURES, OutputParams(output="classes"), use_tqdm=False)]
    most = 0
    for picture, raster, semantic in zip(PICTURES, found, classes, strict=True):
        raw, size = by_transformers(model, processor, picture), picture.size[::-1]
        post_process = getattr(processor, f"post_process_{task}_segmentation")
        (expected,) = post_process(raw, target_sizes=[size], threshold=THRESHOLD)
        told = json.loads(raster.metadata["segments"])
        assert [one["label_id"] for one in told] == [one["label_id"] for one in expected["segments_info"]]
        scores = [one["score"] for one in expected["segments_info"]]
        assert [one["score"] for one in told] == pytest.approx(scores, abs=1e-4)  # its weights are large
        assert raster.class_names[1:] == tuple(("field", "water", "road")[one["label_id"]] for one in told)
        for number, one in enumerate(expected["segments_info"], start=1):
            np.testing.assert_array_equal(raster.array[0] == number, expected["segmentation"] == one["id"])
        (ids,) = processor.post_process_semantic_segmentation(raw, target_sizes=[size])
        assert np.mean(semantic.array[0] != np.asarray(ids)) < 1e-3  # a tie falls as the order of sums has it
        assert semantic.class_names == ("field", "water", "road")
        most = max(most, len(told))
    assert most >= (2 if task == "instance" and architecture != "DetrForSegmentation" else 1)


def test_a_scene_has_its_segments_as_polygons(tmp_path):
    """Tiles are joined, and GeoJSON names what each segment is, in the coordinates of the scene."""
    llm, _, _ = started("Mask2FormerForUniversalSegmentation", tmp_path / "model", "instance")
    rows, cols = np.mgrid[:150, :200]
    pixels = np.stack([128 + 100 * np.sin(rows / span + cols / (span + 7)) for span in (9, 17, 31)]).astype(np.uint8)
    place = {"crs": "EPSG:32614", "transform": Affine(10, 0, 500_000, 0, -10, 4_500_000)}
    with rasterio.open(
        tmp_path / "s.tif", "w", "GTiff", width=200, height=150, count=3, dtype="uint8", **place
    ) as file:
        file.write(pixels)
    path = str(tmp_path / "segments.tif")
    (result,) = llm.generate([tmp_path / "s.tif"], OutputParams(overlap=16, path=path), use_tqdm=False)
    raster = result.outputs
    assert raster.array.shape == (1, 150, 200)
    told = json.loads(raster.metadata["segments"])
    assert len(told) >= 2
    assert set(np.unique(raster.array)) <= set(range(len(told) + 1))
    with rasterio.open(path) as file:
        assert (file.crs.to_epsg(), file.transform) == (32614, place["transform"])
        np.testing.assert_array_equal(file.read(), raster.array)
    asked = OutputParams(overlap=16, output="polygons", path=str(tmp_path / "segments.geojson"))
    llm.generate([tmp_path / "s.tif"], asked, use_tqdm=False)[0].outputs.close()
    features = json.loads((tmp_path / "segments.geojson").read_text())["features"]
    assert {one["properties"]["class"] for one in features} == set(np.unique(raster.array)) - {0}
    assert {one["properties"]["name"] for one in features} <= {"field", "water", "road"}


GRID = TileGrid(40, 56, 24, overlap=8)
"""Of several tiles either way, the last shifted inward."""
WHOLE = np.zeros((40, 56), np.uint16)
WHOLE[5:35, 10:50] = 1
WHOLE[15:25, 20:40] = 2
WHOLE[36:, :] = 3
LABELS = {1: 0, 2: 1, 3: 0}


def tiles_of(whole, order):
    """What a model that makes no mistake finds in each tile, numbered anew."""
    for index in order:
        window = GRID.window(index)
        seen = whole[window.rows, window.cols]
        there = [number for number in np.unique(seen) if number]
        ids = np.zeros_like(seen)
        told = []
        for new, number in enumerate(there, start=1):
            ids[seen == number] = new
            told.append({"id": new, "label_id": LABELS[int(number)], "label": str(LABELS[int(number)]), "score": 0.5})
        yield Part(index, window, RasterOutput(ids[None], nodata=0, metadata={"segments": json.dumps(told)}))


@pytest.mark.parametrize("order", [list(range(len(GRID))), list(reversed(range(len(GRID))))], ids=["forth", "back"])
def test_segments_of_tiles_become_those_of_the_whole(order):
    """One within another, one around it and one beside it, whatever the order of tiles."""
    ids, found = joined_segments(Parts(tiles_of(WHOLE, order), grid=GRID, source=Source(size=WHOLE.shape)))
    np.testing.assert_array_equal(ids, WHOLE)
    assert [one.label_id for one in found] == [0, 1, 0]
    assert [one.score for one in found] == pytest.approx([0.5] * 3)


def test_segments_that_touch_at_a_corner_of_a_seam_stay_two():
    """What lies against each other must be at least half of the shorter."""
    whole = np.zeros((40, 56), np.uint16)
    seam = (GRID.cols[1] + GRID.sides[1]) // 2
    whole[2:12, seam - 6 : seam] = 1
    whole[11:19, seam : seam + 6] = 3
    _, found = joined_segments(Parts(tiles_of(whole, range(len(GRID))), grid=GRID, source=Source(size=whole.shape)))
    assert len(found) == 2


def test_a_task_that_is_none_is_refused():
    """With what can be asked for."""
    with pytest.raises(OptionError, match="panoptic, instance"):
        ImageSegmentationProcessor(task="semantic")
