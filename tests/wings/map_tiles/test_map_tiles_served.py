"""Map tiles of a running server, by the code of docs/map-tiles.md."""

from __future__ import annotations

from io import BytesIO

import httpx
import numpy as np
import pytest
from pages import all_blocks
from PIL import Image

pytestmark = pytest.mark.engine


@pytest.fixture
def layer(water_server, tmp_path, monkeypatch):
    """What the page's code gets from a server: the TileJSON document."""
    from vllm_mmout import embedded_scene

    (tmp_path / "demo-output").mkdir()
    embedded_scene(tmp_path / "demo-output/scene.tif")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_PROXY", "*")
    (block,) = [block.text for block in all_blocks("python") if block.page == "map-tiles.md"]
    names = {}
    exec(block.replace("http://localhost:8000", water_server.url), names)  # noqa: S102 - the page is our own
    return names["layer"]


def test_the_guide_finds_tiles_with_the_colours_of_the_legend(layer, water_server):
    """The tile in the middle of the scene has the colours of the classes, and no other."""
    longitude, latitude, _ = layer["center"]
    zoom = layer["maxzoom"]
    column = int((longitude + 180) / 360 * 2**zoom)
    row = int((1 - np.arcsinh(np.tan(np.radians(latitude))) / np.pi) / 2 * 2**zoom)
    address = layer["tiles"][0].format(z=zoom, x=column, y=row)
    assert address.startswith(water_server.url)
    tile = np.asarray(Image.open(BytesIO(httpx.get(address, trust_env=False).content)))
    seen = {"#" + bytes(colour).hex() for colour in np.unique(tile[tile[..., 3] == 255][:, :3], axis=0)}
    assert seen == {row["color"] for row in layer["classes"]}
    assert [row["name"] for row in layer["classes"]] == ["land", "water"]
