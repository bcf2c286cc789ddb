"""Maps of each day through the server: in one answer, and as jobs of ``vllm-mmout submit``."""

from __future__ import annotations

import base64
from itertools import product

import httpx
import numpy as np
import pytest
from scenes_for_tests import pixels, write

from vllm_mmout import Mosaic, OutputParams
from vllm_mmout.cli import main

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
xarray = pytest.importorskip("xarray", reason="the oracle is xarray")
zarr = pytest.importorskip("zarr")
pytestmark = pytest.mark.engine
DAYS = ["2024-05-01", "2024-06-03"]


def scene(folder, name, seed, west=735_000):
    """A scene of 40 x 50 pixels."""
    place = {"crs": "EPSG:32632", "transform": rasterio.Affine(30, 0, west, 0, -30, 4_995_000)}
    return write(folder / f"{name}.tif", pixels(seed, 40, 50), **place)


@pytest.fixture
def scenes(tmp_path):
    """Three scenes of two days, the later day first."""
    return [
        scene(tmp_path, "a_2024-06-03", 0),
        scene(tmp_path, "b_2024-06-03", 1, 735_600),
        scene(tmp_path, "c_2024-05-01", 2, 735_300),
    ]


def ask(server, scenes, headers=None, **fields):
    """The answer to one request with several scenes."""
    files = [("image", (each.name, each.read_bytes())) for each in scenes]
    url = f"{server.url}/v1/images/edits"
    return httpx.post(url, files=files, data=fields, headers=headers, timeout=120, trust_env=False)


def test_submit_writes_the_files_of_run(water_server, llm, scenes, tmp_path, monkeypatch):
    """A folder gets a file of each day and kind, and a Zarr store the time axis, with the pixels of `LLM.generate`."""
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    options = OutputParams(path=f"{tmp_path}/run/", output=("classes", "areas"))
    llm.generate(Mosaic(scenes, each_day=True), options, use_tqdm=False)
    command = ["submit", *map(str, scenes), "--each-day", "--server", water_server.url]
    assert main([*command, "--output", "classes,areas", "-o", f"{tmp_path}/days/"]) == 0
    assert main([*command, "-o", f"{tmp_path}/days.zarr.zip"]) == 0
    stems = [{file.stem for file in (tmp_path / name).iterdir() if file.suffix != ".xml"} for name in ("run", "days")]
    assert stems[0] == stems[1] == {f"{day}-{kind}" for day in DAYS for kind in ("classes", "areas")}
    with zarr.storage.ZipStore(tmp_path / "days.zarr.zip") as store:
        series = xarray.open_zarr(store, mask_and_scale=False).raster.load()
    assert [str(time)[:10] for time in series.time.values] == DAYS
    for index, day in enumerate(DAYS):
        paths = [tmp_path / name / f"{day}-classes.tif" for name in ("run", "days")]
        with rasterio.open(paths[0]) as made, rasterio.open(paths[1]) as served:
            np.testing.assert_array_equal(served.read(), made.read(), strict=True)
            assert (served.crs, served.transform, served.tags()) == (made.crs, made.transform, made.tags())
            np.testing.assert_array_equal(series[index], made.read(), strict=True)


def test_one_answer_has_a_result_of_each_day(water_server, scenes, tmp_path):
    """Each result names its kind and day. What an answer cannot hold is refused with what to do."""
    fields = {"mosaic": "newest", "each_day": "true", "output": "classes,areas", "output_format": "tiff"}
    answer = ask(water_server, scenes, **fields)
    data = answer.json()["data"]
    assert [(each["day"], each["output"]) for each in data] == list(product(DAYS, ["classes", "areas"]))
    (tmp_path / "served.tif").write_bytes(base64.b64decode(data[0]["b64_json"]))
    with rasterio.open(tmp_path / "served.tif") as file:
        assert file.tags()["MMOUT_INPUTS"] == "c_2024-05-01.tif"
    far = scene(tmp_path, "far_2024-07-01", 3, 735_000 + 30 * 7_500_000)
    one = {"output": "classes"}
    for sent, headers, changed, words in [
        (scenes, {"Accept": "image/tiff"}, one, "each_day needs an answer in JSON"),
        (scenes, {}, {"path": "s3://bucket/map.tif", "output_format": ""}, "path names one file, and each_day makes"),
        (scenes, {}, {"mosaic": ""}, "each_day is set without mosaic"),
        (scenes, {}, {"output_format": "zarr"}, "one store of the maps of all days"),
        ([scenes[2], far], {}, one, "the maps of 2 days each have 40 x 75000"),
    ]:
        refusal = ask(water_server, sent, headers, **{**fields, **changed})
        assert (refusal.status_code, words in refusal.text) == (400, True), refusal.text
