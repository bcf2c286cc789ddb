"""The STAC collection of the results of a running server, by the code of docs/stac.md."""

from __future__ import annotations

import pytest
from pages import all_blocks
from scene_clients import client, ended, made

from vllm_mmout import embedded_scene

pytest.importorskip("pystac", reason="the page's code uses it")
pytestmark = pytest.mark.engine


def test_the_guide_lists_the_results_of_jobs(water_server, tmp_path, monkeypatch, capsys):
    """The code reads the collection and its items from the server, and finds the address of the file."""
    monkeypatch.setenv("NO_PROXY", "*")
    (block,) = [block.text for block in all_blocks("python") if block.page == "stac.md" and "localhost" in block.text]
    scene = embedded_scene(tmp_path / "scene.tif").read_bytes()
    with client(base_url=water_server.url) as asking:
        job = made(asking.post("/v1/scenes", files={"image": ("scene.tif", scene)}))["id"]
        ended(asking, [job])
        exec(block.replace("http://localhost:8000", water_server.url), {})  # noqa: S102 - the page is our own
        asking.delete(f"/v1/scenes/{job}")
    assert f"{job} scene.tif {water_server.url}/v1/scenes/{job}/content\n" in capsys.readouterr().out
