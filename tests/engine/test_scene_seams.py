"""Seams: a model that looks around itself gives the same tiled, with overlap, as whole; without overlap seams show."""

from __future__ import annotations

import numpy as np
import pytest
from model_folders import engine_here, folder_of
from scene_generator import make_scene
from scenes_for_tests import generate
from smooth_model import CONFIG, RADIUS, SmoothWaterIndex

from vllm_mmout import OutputParams
from vllm_mmout.geo.tiling.grid import TileGrid

pytestmark = pytest.mark.engine

SIZE, TILE = 448, 128
QUARTERS = 4 * RADIUS
"""Overlap of which the outer quarter is the model's radius."""


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    """An engine of the smoothing model."""
    from make_weights import water_index_weights

    folder, _ = folder_of(tmp_path_factory.mktemp("smooth") / "model", SmoothWaterIndex, **CONFIG)
    from safetensors.numpy import save_file

    save_file(water_index_weights(), f"{folder}/model.safetensors")
    return engine_here(folder)


@pytest.fixture(scope="module")
def scene():
    """The embedded scene, in reflectance times 10000."""
    return make_scene(SIZE, SIZE).array


@pytest.fixture(scope="module")
def whole(llm, scene):
    """What the model says of the scene in one forward, float32 [2, height, width]."""
    params = OutputParams(output="probabilities", nodata=-9999)
    return llm.generate(scene, params, use_tqdm=False)[0].outputs.array


def steps(probability):
    """The mean change from each column to the next, and from each row to the next."""
    return np.nanmean(np.abs(np.diff(probability, axis=1)), axis=0), np.nanmean(
        np.abs(np.diff(probability, axis=0)), axis=1
    )


def at_borders(overlap):
    """Numbers of the steps, of `steps`, that cross a tile's border or the middle between two tiles."""
    grid = TileGrid(SIZE, SIZE, TILE, overlap)
    inner = {start - 1 for start in grid.cols[1:]} | {start + TILE - 1 for start in grid.cols[:-1]}
    middles = {(left + TILE + right) // 2 - 1 for left, right in zip(grid.cols, grid.cols[1:], strict=False)}
    return sorted(inner | middles)


def seams(probability, overlap):
    """How much larger the largest mean step at a border is than the largest elsewhere."""
    borders = at_borders(overlap)
    ratios = []
    for changes in steps(probability):
        elsewhere = np.delete(changes, borders)
        ratios.append(changes[borders].max() / elsewhere.max())
    return max(ratios)


@pytest.mark.parametrize(
    ("blend", "overlap"), [("cosine", QUARTERS), ("linear", QUARTERS), ("none", 2 * RADIUS), ("cosine", TILE // 2)]
)
def test_with_overlap_there_are_no_seams(llm, scene, whole, blend, overlap):
    """No larger step along tile borders than elsewhere, and every value is that of the whole scene in one forward."""
    options = {"output": "probabilities", "nodata": -9999, "tile": TILE, "overlap": overlap, "blend": blend}
    joined = generate(llm, scene, **options).array
    np.testing.assert_allclose(joined, whole, rtol=0, atol=2e-7)
    assert seams(joined[1], overlap) <= 1


@pytest.mark.parametrize("blend", ["cosine", "none"])
def test_without_overlap_there_are_seams(llm, scene, whole, blend):
    """The measure of seams sees those that are there."""
    joined = generate(llm, scene, output="probabilities", nodata=-9999, tile=TILE, blend=blend).array
    assert seams(whole[1], 0) <= 1
    assert seams(joined[1], 0) > 1.5
    assert np.nanmax(np.abs(joined - whole)) > 0.1


@pytest.mark.parametrize("blend", ["cosine", "linear", "none"])
def test_classes_are_those_of_the_whole_scene(llm, scene, blend):
    """Probabilities are averaged before the class is chosen."""
    params = OutputParams(nodata=-9999)
    expected = llm.generate(scene, params, use_tqdm=False)[0].outputs.array
    joined = generate(llm, scene, nodata=-9999, tile=TILE, overlap=QUARTERS, blend=blend).array
    assert set(np.unique(expected)) == {0, 1, 255}
    assert (joined == expected).mean() > 0.9999  # where two classes are as good as equal, rounding decides
    assert np.array_equal(joined == 255, expected == 255)
