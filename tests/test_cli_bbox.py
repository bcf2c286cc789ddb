"""A bounding box on the command line."""

from __future__ import annotations

import os

import forked_python
import numpy as np
import pytest
from scene_generator import make_scene, write_scene
from scenes_for_tests import classes

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
pytestmark = pytest.mark.engine


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning")  # rasterio's own use of affine
def test_run_on_a_part_in_longitudes(tmp_path):
    """The file that is written is the part of the scene that the box has, and lies there."""
    from rasterio.warp import transform_bounds
    from rasterio.windows import Window, from_bounds

    write_scene(tmp_path / "scene.tif", make_scene(64, 80, seed=1))
    with rasterio.open(tmp_path / "scene.tif") as file:
        crs, transform, array = file.crs, file.transform, file.read()
        valid = (array != file.nodata).all(axis=0)
        box = transform_bounds(crs, "EPSG:4326", *file.window_bounds(Window(20, 11, 40, 30)))
    where = ["--bbox=" + ",".join(map(repr, box)), "--bbox-crs", "EPSG:4326", "-o", "part.tif"]
    command = ["-m", "vllm_mmout.cli", "run", "water-index", "scene.tif", *where]
    kept = {name: value for name, value in os.environ.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    done = forked_python.run(command, cwd=tmp_path, env=kept)
    assert (done.returncode, done.stdout) == (0, "part.tif\n"), done.stderr
    with rasterio.open(tmp_path / "part.tif") as part:
        assert part.crs == crs
        window = from_bounds(*part.bounds, transform=transform).round_offsets().round_lengths()
        assert 17 <= window.col_off <= 20
        assert 60 <= window.col_off + window.width <= 63
        assert 8 <= window.row_off <= 11
        assert 41 <= window.row_off + window.height <= 44
        there = window.toslices()
        np.testing.assert_array_equal(part.read(), classes(array[:, *there], valid[there]))
