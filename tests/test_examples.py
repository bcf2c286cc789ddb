"""The examples run as they stand, in a folder of their own."""

from __future__ import annotations

import os
from pathlib import Path

import forked_python
import numpy as np
import pytest

pytestmark = pytest.mark.engine
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(name, cwd):
    """Return what an example prints, without the engine's log."""
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}
    done = forked_python.run([EXAMPLES / name], cwd=cwd, env=environment, check=True)
    assert "Traceback" not in done.stderr
    return done.stdout


def test_every_example_is_run():
    """An example that no test runs would rot."""
    listed = {file.name for file in EXAMPLES.iterdir() if not file.name.startswith((".", "__"))}
    assert listed == {
        *("flood.py", "async_many.py", "client.py", "flood.ipynb", "area_and_date.ipynb", "own_model", "qgis"),
        "terratorch",
    }
    others = {
        "client.py": "serving/test_client_example.py",
        "flood.ipynb": "test_notebook.py",
        "area_and_date.ipynb": "test_area_notebook.py",
        "own_model": "test_own_model_package.py",
        "qgis": "test_qgis_script.py",
        "terratorch": "wings/terratorch/engine/test_terratorch_examples.py",
    }
    for example, test in others.items():
        assert f"examples/{example}" in (Path(__file__).parent / test).read_text()


def test_flood(tmp_path):
    """It writes the scene, the mask as GeoTIFF and PNG and the confidence, where they lie on one another."""
    from PIL import Image

    rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
    printed = run("flood.py", tmp_path)
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {"scene.tif", "water.tif", "water.tif.aux.xml", "water.qml", "water.png", "confidence.tif"}
    with rasterio.open(tmp_path / "scene.tif") as scene, rasterio.open(tmp_path / "water.tif") as water:
        assert (water.crs, water.transform, water.shape) == (scene.crs, scene.transform, scene.shape)
        classes = water.read(1)
    assert set(np.unique(classes)) == {0, 1, 255}
    assert f"{(classes == 1).sum()} pixels of water, EPSG:32632" in printed
    with rasterio.open(tmp_path / "confidence.tif") as confidence:
        np.testing.assert_array_equal(np.isnan(confidence.read(1)), classes == 255)
    with Image.open(tmp_path / "water.png") as picture:
        assert picture.size == (512, 512)


@pytest.mark.slow
def test_async_many(tmp_path, demo_scene):
    """Fifteen tiles answer, the cancelled and the broken one say so, and the shares are those of the whole scene."""
    lines = run("async_many.py", tmp_path).splitlines()
    assert lines.count("one tile was cancelled") == 1
    (refused,) = [line for line in lines if line.startswith("one tile was refused")]
    assert refused.startswith("one tile was refused: the input has 4 bands, model 'WaterIndex' takes 6 (blue, green,")
    shares = dict(line.removesuffix(" water").split(": ") for line in lines if line.startswith("tile "))
    scene = demo_scene.array.astype(np.float32)
    expected = {}
    for row in range(0, 512, 128):
        for col in range(0, 512, 128):
            tile = scene[:, row : row + 128, col : col + 128]
            seen = (tile != demo_scene.nodata).all(axis=0)
            wet = np.maximum(tile[1], 0) > np.maximum(tile[4], 0)
            expected[f"tile {row}/{col}"] = f"{wet[seen].mean():.0%}"
    del expected["tile 0/0"]
    assert shares == expected
