"""``vllm-mmout submit`` against a real server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import httpx
import numpy as np
import pytest
from PIL import Image
from scenes_for_tests import classes, pixels, probabilities, with_a_hole, write

from vllm_mmout.cli import main

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
pytestmark = pytest.mark.engine
PLACE = {"crs": "EPSG:32614", "transform": rasterio.Affine(30, 0, 500_000, 0, -30, 3_000_000), "nodata": 0}


@pytest.fixture(autouse=True)
def _no_key(monkeypatch):
    for name in ("VLLM_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def array():
    """uint16 [6, 300, 400] with a hole of nodata."""
    return with_a_hole()


@pytest.fixture(scope="module")
def scene(array, tmp_path_factory):
    """The same as a GeoTIFF."""
    return write(tmp_path_factory.mktemp("scene") / "scene.tif", array, **PLACE)


def submit(server, *arguments):
    """The exit status of the command."""
    return main(["submit", *map(str, arguments), "--server", server.url])


def ask(server, path, method="GET", **more):
    return httpx.request(method, f"{server.url}/v1/scenes{path}", timeout=60, trust_env=False, **more)


def listed(server):
    """The jobs that the server has, by id."""
    return {job["id"]: job for job in ask(server, "?limit=100").json()["data"]}


def read(path):
    with rasterio.open(path) as raster:
        assert (raster.crs, raster.transform) == (PLACE["crs"], PLACE["transform"])
        return raster.read()


@pytest.mark.parametrize("options", [[], ["--tile", "64", "--overlap", "8"]])
def test_the_result_is_that_of_the_scene(water_server, array, scene, tmp_path, capsys, options):
    """The GeoTIFF has the classes of numpy on the place of the scene, their names beside it, and the job is gone."""
    before = listed(water_server)
    assert submit(water_server, scene, "-o", tmp_path / "mask.tif", *options) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'mask.tif'}\n"
    found = read(tmp_path / "mask.tif")
    np.testing.assert_array_equal(found == 255, ~(array != 0).all(axis=0)[np.newaxis])
    expected = classes(array, (array != 0).all(axis=0))
    np.testing.assert_array_equal(found, expected)
    assert "<Category>water</Category>" in (tmp_path / "mask.tif.aux.xml").read_text()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mask.qml", "mask.tif", "mask.tif.aux.xml"]
    assert listed(water_server) == before


def test_files_of_bands_and_options(water_server, array, tmp_path):
    """A file a band is one input, and options of the request say the same as in Python."""
    bands = [write(tmp_path / f"part{band}.tif", array[[band]], **PLACE) for band in range(6)]
    options = ["--output", "probabilities", "--nodata", "0"]
    assert submit(water_server, *bands, "-o", tmp_path / "p.tif", *options) == 0
    valid = (array != 0).all(axis=0)
    np.testing.assert_allclose(read(tmp_path / "p.tif")[:, valid], probabilities(array)[:, valid], atol=1e-5)


def test_a_picture_by_its_suffix(water_server, scene, tmp_path):
    """The format follows from the name of the file."""
    assert submit(water_server, scene, "-o", tmp_path / "mask.png") == 0
    with Image.open(tmp_path / "mask.png") as picture:
        assert (picture.format, picture.size) == ("PNG", (400, 300))


def test_a_job_is_gone_on_with(water_server, array, scene, tmp_path, capsys):
    """Half of the bytes, as a client that was killed leaves them, become the whole result; a kept job stays."""
    assert submit(water_server, scene, "--no-wait", "--output-format", "tiff") == 0
    job = capsys.readouterr().out.strip()
    assert submit(water_server, "--resume", job, "-o", tmp_path / "one.tif", "--keep") == 0
    path = f"/{job}/content?processor=segmentation"
    whole = ask(water_server, path)
    assert (tmp_path / "one.tif").read_bytes() == whole.content
    half, etag = len(whole.content) // 2, whole.headers["ETag"]
    part = ask(water_server, path, headers={"Range": f"bytes={half}-", "If-Range": etag})
    assert (part.status_code, part.content) == (206, whole.content[half:])
    for content, said in ((whole.content[:half], etag), (b"?" * half, '"another"')):
        (tmp_path / "two.tif.part").write_bytes(content)
        record = {"source": f"{water_server.url}/v1/scenes{path}", "etag": said}
        (tmp_path / "two.tif.part.json").write_text(json.dumps(record))
        assert submit(water_server, "--resume", job, "-o", tmp_path / "two.tif", "--keep") == 0
        assert (tmp_path / "two.tif").read_bytes() == whole.content
    np.testing.assert_array_equal(read(tmp_path / "two.tif"), classes(array, (array != 0).all(axis=0)))
    assert submit(water_server, "--resume", job, "-o", tmp_path / "two.tif") == 0
    assert ask(water_server, f"/{job}").status_code == 404


def test_an_interrupt_cancels_the_job(water_server, tmp_path):
    """Ctrl-C while the tiles run: the server does not know the job any more, and nothing is written."""
    large = write(tmp_path / "large.tif", np.tile(pixels(3, 64, 64), (1, 16, 16)), **PLACE)
    command = ["submit", str(large), "-o", str(tmp_path / "mask.tif"), "--tile", "16", "--server", water_server.url]
    before = listed(water_server)
    with subprocess.Popen(
        [sys.executable, "-m", "vllm_mmout.cli", *command], stderr=subprocess.PIPE, text=True
    ) as client:
        while not (made := set(listed(water_server)) - set(before)):
            assert client.poll() is None
            time.sleep(0.05)
        assert client.stderr.readline().startswith(f"job {min(made)}")
        client.send_signal(signal.SIGINT)
        _, said = client.communicate(timeout=120)
    assert client.returncode == 130, said
    assert f"the job {min(made)} is cancelled" in said
    assert ask(water_server, f"/{min(made)}").status_code == 404
    assert [file.name for file in tmp_path.iterdir()] == ["large.tif"]


def test_what_the_server_refuses_is_shown(water_server, scene, tmp_path, capsys):
    """An input that does not fit the model is told in the server's words; nothing is written."""
    for option, words in ((["--bands", "1,2"], "bands"), (["--model", "no-model"], "no-model")):
        assert submit(water_server, scene, "-o", tmp_path / "mask.tif", *option) == 1
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith("vllm-mmout: ")
        assert words in last
    assert list(tmp_path.iterdir()) == []


def test_a_guarded_server_wants_its_key_and_no_more_than_it_takes(guarded_server, scene, tmp_path, capsys, monkeypatch):
    """Without the key it is said where one is given; with it the result comes, and what is too large is told."""
    assert submit(guarded_server, scene, "-o", tmp_path / "mask.tif") == 1
    assert "Unauthorized (401); give the server's key with --api-key" in capsys.readouterr().err
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    (tmp_path / "large.tif").write_bytes(bytes(64 << 20))
    assert submit(guarded_server, tmp_path / "large.tif", "-o", tmp_path / "mask.tif") == 1
    assert "larger than 2097152 bytes, the most that is taken" in capsys.readouterr().err.splitlines()[-1]
    assert submit(guarded_server, scene, "-o", tmp_path / "mask.tif", "--window", "0,0,30,40") == 0
    with rasterio.open(tmp_path / "mask.tif") as mask:
        assert mask.shape == (30, 40)
