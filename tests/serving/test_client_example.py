"""examples/client.py runs as it stands against a server, in a folder of its own."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.engine
EXAMPLE = Path(__file__).resolve().parents[2] / "examples/client.py"


def test_the_client_writes_what_the_server_answers(water_server, tmp_path, monkeypatch, capsys):
    """It writes a GeoTIFF that lies on the scene, previews that grow into the picture, and prints what was refused."""
    rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
    monkeypatch.setenv("OPENAI_BASE_URL", f"{water_server.url}/v1")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    with rasterio.open(tmp_path / "scene.tif") as scene, rasterio.open(tmp_path / "water.tif") as water:
        assert (water.crs, water.transform, water.shape) == (scene.crs, scene.transform, scene.shape)
        classes = water.read(1)
    assert f'"pixels": {(classes == 1).sum()},' in printed
    assert "refused because of prompt: the model 'water-index' takes rasters of 6 bands" in printed
    final = _pixels(tmp_path / "water.png")
    assert final.shape == (512, 512, 4)
    np.testing.assert_array_equal(final[..., 3] > 0, classes != 255)
    previews = sorted(tmp_path.glob("preview-*.png"))
    assert previews
    for preview in map(_pixels, previews):
        shown = preview[..., 3] > 0
        assert 0 < shown.sum() < (classes != 255).sum()
        np.testing.assert_array_equal(preview[shown], final[shown])


def _pixels(file):
    with Image.open(file) as picture:
        return np.asarray(picture.convert("RGBA"))
