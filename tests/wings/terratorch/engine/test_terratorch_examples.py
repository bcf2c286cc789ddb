"""The scripts of examples/terratorch run as they stand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import rasterio

from scripts import run_script

EXAMPLES = Path(__file__).resolve().parents[4] / "examples/terratorch"


def test_make_scene(tmp_path):
    """A georeferenced scene of the size, bands and dtype that were asked for, the same every time."""
    names = ["one.tif", "other.tif"]
    for name in names:
        run_script(
            EXAMPLES / "make_scene.py", name, "320", "--bands", "4", "--dtype", "float32", "--nodata", cwd=tmp_path
        )
    with rasterio.open(tmp_path / names[0]) as one, rasterio.open(tmp_path / names[1]) as other:
        assert (one.shape, one.count, one.dtypes[0], one.nodata) == ((320, 320), 4, "float32", -9999)
        assert (one.crs.to_epsg(), one.res) == (32630, (10, 10))
        pixels = one.read()
        np.testing.assert_array_equal(pixels, other.read())
    assert 0 < (pixels == -9999).mean() < 0.5
    seen = pixels[pixels != -9999]
    assert 0 < seen.min() < seen.max() <= 1


@pytest.mark.slow
def test_make_model(scene, tmp_path):
    """A folder of four classes that share a scene's pixels; weights that do not are refused."""
    done = run_script(EXAMPLES / "make_model.py", "crops", "--classes", "4", "--centre", str(scene), cwd=tmp_path)
    shares, folder = done.stdout.splitlines()[-2:]
    assert all(float(share.strip(" %")) >= 10 for share in shares.partition(":")[2].split(","))
    assert folder == "crops"
    config = json.loads((tmp_path / "crops/config.json").read_text())
    assert config["architectures"] == ["Terratorch"]
    assert (tmp_path / "crops/model.pt").stat().st_size > 1_000_000
