"""Mosaics through the server: in one request, and as a job."""

from __future__ import annotations

import base64
import time

import httpx
import numpy as np
import pytest
from scenes_for_tests import pixels, write

from vllm_mmout import Mosaic, OutputParams

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
pytestmark = pytest.mark.engine


@pytest.fixture
def scenes(tmp_path):
    """Two scenes of two dates that overlap, in two zones."""
    return [
        write(
            tmp_path / f"{name}.tif",
            pixels(seed),
            crs=f"EPSG:326{zone}",
            transform=rasterio.Affine(30, 0, west, 0, -30, 4_995_000),
        )
        for seed, (name, zone, west) in enumerate([("a_2024-05-01", 32, 735_000), ("b_2024-06-01", 33, 264_000)])
    ]


def ask(server, path, scenes, **fields):
    """The answer to several files in one form."""
    files = [("image", (scene.name, scene.read_bytes())) for scene in scenes]
    return httpx.post(f"{server.url}{path}", files=files, data=fields, timeout=120, trust_env=False)


def test_a_served_mosaic_is_that_of_the_library(water_server, llm, scenes, tmp_path):
    """Several files with the field `mosaic` give the map of `LLM.generate`, in an answer and as a job."""
    llm.generate(Mosaic(scenes), OutputParams(tile=32, path=str(tmp_path / "made.tif")), use_tqdm=False)
    with rasterio.open(tmp_path / "made.tif") as file:
        expected, tags = file.read(), file.tags()
    answer = ask(water_server, "/v1/images/edits", scenes, mosaic="newest", tile="32", output_format="tiff")
    job = ask(water_server, "/v1/scenes", scenes, mosaic="newest", tile="32", output_format="tiff").json()
    while job["status"] in ("queued", "in_progress"):
        time.sleep(0.02)
        job = httpx.get(f"{water_server.url}/v1/scenes/{job['id']}", trust_env=False).json()
    assert (job["status"], answer.json()["usage"]["input_tokens"]) == ("completed", 2 * 9), answer.text[:500]
    content = httpx.get(f"{water_server.url}/v1/scenes/{job['id']}/content", trust_env=False).content
    for made in (content, base64.b64decode(answer.json()["data"][0]["b64_json"])):
        (tmp_path / "served.tif").write_bytes(made)
        with rasterio.open(tmp_path / "served.tif") as file:
            np.testing.assert_array_equal(file.read(), expected, strict=True)
            assert file.tags() == tags


def test_a_served_mosaic_has_a_grid_and_leaves_out_what_fails(water_server, llm, scenes, tmp_path):
    """`mosaic_grid` sets the map's grid, and with `skip_failed` files that are no images are warnings, also of jobs."""
    grid = ("EPSG:3035", 60)
    llm.generate(Mosaic(scenes, grid=grid), OutputParams(tile=32, path=str(tmp_path / "made.tif")), use_tqdm=False)
    broken = tmp_path / "broken_2024-07-01.tif"
    broken.write_bytes(b"no image")
    sent = [*scenes, broken]
    fields = {"mosaic": "newest", "mosaic_grid": "EPSG:3035,60", "tile": "32", "output_format": "tiff"}
    assert ask(water_server, "/v1/images/edits", sent, **fields).status_code == 400
    assert ask(water_server, "/v1/scenes", sent, **fields).status_code == 400
    answer = ask(water_server, "/v1/images/edits", sent, **fields, skip_failed="true").json()
    job = ask(water_server, "/v1/scenes", sent, **fields, skip_failed="true").json()
    while job["status"] in ("queued", "in_progress"):
        time.sleep(0.02)
        job = httpx.get(f"{water_server.url}/v1/scenes/{job['id']}", trust_env=False).json()
    for warnings in (answer["warnings"], job["warnings"]):
        assert any("broken_2024-07-01.tif was left out of the mosaic" in text for text in warnings)
    (tmp_path / "served.tif").write_bytes(base64.b64decode(answer["data"][0]["b64_json"]))
    with rasterio.open(tmp_path / "made.tif") as made, rasterio.open(tmp_path / "served.tif") as served:
        assert (served.crs, served.transform) == (made.crs, made.transform)
        np.testing.assert_array_equal(served.read(), made.read(), strict=True)


def test_a_mosaic_above_the_limits_is_refused(water_server, scenes, tmp_path):
    """A map of more pixels than --mmout-max-pixels, an undated scene and a wrong order are errors of the client."""
    far = write(
        tmp_path / "far_2024-05-01.tif", pixels(1), crs="EPSG:32632", transform=rasterio.Affine(30, 0, 2e6, 0, -30, 0)
    )
    undated = write(
        tmp_path / "undated.tif", pixels(1), crs="EPSG:32632", transform=rasterio.Affine(30, 0, 7e5, 0, -30, 5e6)
    )
    for files, order, words in [
        ([scenes[0], far], "newest", "pixels, at most 500000000 are made"),
        ([scenes[0], undated], "newest", "undated.tif has no date"),
        (scenes, "oldest", "mosaic must be one of newest, first, clear, confident"),
    ]:
        answer = ask(water_server, "/v1/images/edits", files, mosaic=order)
        assert (answer.status_code, words in answer.text) == (400, True), answer.text
