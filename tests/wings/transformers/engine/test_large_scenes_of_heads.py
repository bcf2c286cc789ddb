"""Heads with a result for each pixel on a large scene: in its place, and without seams.

4096 pixels either way with ``MMOUT_LONG=1``.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import rasterio
from model_folders import engine_here
from rasterio.transform import Affine
from small_heads import head, saved

from vllm_mmout import OutputParams

pytestmark = pytest.mark.engine
SIDE = 4096 if os.environ.get("MMOUT_LONG") else 192
TILE, OVERLAP = 64, 32
PLACE = {"crs": "EPSG:32614", "transform": Affine(10, 0, 500_000, 0, -10, 4_500_000)}


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A smooth picture, no two tiles of it alike."""
    rows, cols = np.mgrid[:SIDE, :SIDE].astype(np.float32)
    waves = [128 + 100 * np.sin(rows / span + cols / (span + 7)) for span in (9, 17, 31)]
    file = tmp_path_factory.mktemp("scene") / "scene.tif"
    with rasterio.open(file, "w", "GTiff", width=SIDE, height=SIDE, count=3, dtype="uint8", tiled=True, **PLACE) as out:
        out.write(np.stack(waves).astype(np.uint8))
    return file


@pytest.mark.parametrize(
    ("architecture", "finer"),
    [("DPTForDepthEstimation", 1), ("SegformerForSemanticSegmentation", 1), ("Swin2SRForImageSuperResolution", 2)],
)
def test_a_large_scene_has_no_seams(architecture, finer, scene, tmp_path):
    """Where tiles end neighbours differ no more than elsewhere, and the raster lies on the scene."""
    folder = saved(tmp_path / "model", *head(architecture))
    llm = engine_here(folder, max_num_seqs=16)
    path = tmp_path / "made.tif"
    options = OutputParams(tile=TILE, overlap=OVERLAP, path=str(path))
    (result,) = llm.generate([scene], options, use_tqdm=False)
    result.outputs.close()
    with rasterio.open(scene) as before, rasterio.open(path) as after:
        assert (after.crs, after.bounds) == (before.crs, before.bounds)
        assert after.shape == (finer * SIDE, finer * SIDE)
        made = after.read().astype(np.float32)
    if architecture.startswith("Segformer"):
        made = np.stack([made[0] == number for number in np.unique(made)]).astype(np.float32)
        assert len(made) > 1
    step = finer * (TILE - OVERLAP)
    for axis in (1, 2):
        steps = np.abs(np.diff(made, axis=axis)).mean(axis=(0, 3 - axis))  # of a row or column to the next
        assert len(steps) == finer * SIDE - 1
        ends = np.zeros(len(steps), bool)
        for start in range(step, finer * SIDE, step):
            ends[[start - 1, min(start + finer * OVERLAP, finer * SIDE - 1) - 1]] = True
        assert steps[ends].max() <= steps[~ends].max()
