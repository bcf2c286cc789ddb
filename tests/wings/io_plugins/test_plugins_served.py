"""Installed IO Processor plugins as output processors of a running server."""

from __future__ import annotations

import base64
import io
import json
import os
import time
from pathlib import Path

import httpx
import io_plugins_for_tests
import numpy as np
import pytest
import tifffile
import water_oracle
from io_plugins_for_tests import SERVED
from serving import served

pytestmark = pytest.mark.engine
ARRAY = water_oracle.scene(6, 40, 8)
TIFF = io.BytesIO()
tifffile.imwrite(TIFF, ARRAY)
CONTENT = TIFF.getvalue()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server of the embedded model with an ordinary processor and all plugins."""
    folder = io_plugins_for_tests.install(tmp_path_factory.mktemp("plugins"))
    table = json.dumps({"mmout": {"output_processor": SERVED, "decode_timeout_s": 3}})
    path = os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])
    flags = ("--additional-config", table, "--mmout-max-tiles", "8")
    with served("water-index", *flags, environment={"PYTHONPATH": path}) as server:
        yield server


@pytest.fixture(autouse=True)
def _goes_on(server):
    """After each test the server answers."""
    yield
    assert httpx.get(f"{server.url}/health").status_code == 200


def edited(server, name, files=(("image", ("scene.tif", CONTENT)),), **fields):
    """The answer of ``/v1/images/edits``."""
    return httpx.post(
        f"{server.url}/v1/images/edits",
        files=list(files),
        data={"prompt": "", "processor": name, **fields},
        timeout=60,
        trust_env=False,
    )


def said(answer, status=400):
    """The error of an answer."""
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


@pytest.mark.parametrize("name", ["io_plugin:tiff", "io_plugin:paths"])
def test_a_file_of_the_plugin_is_the_answer(server, name):
    """Its base64 as the bytes that it stands for, with the media type of what they are."""
    answer = edited(server, name)
    assert answer.status_code == 200, answer.text
    (datum,) = answer.json()["data"]
    assert answer.json()["output_format"] == "tiff"
    found = tifffile.imread(io.BytesIO(base64.b64decode(datum["b64_json"])))
    np.testing.assert_array_equal(found, water_oracle.logits(ARRAY).argmax(0))


def test_bare_bytes(server):
    """The header ``Accept`` gets the file itself."""
    answer = httpx.post(
        f"{server.url}/v1/images/edits",
        files={"image": ("scene.tif", CONTENT)},
        data={"prompt": "", "processor": "io_plugin:tiff"},
        headers={"Accept": "image/tiff"},
        timeout=60,
        trust_env=False,
    )
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/tiff"), answer.text
    np.testing.assert_array_equal(tifffile.imread(io.BytesIO(answer.content)), water_oracle.logits(ARRAY).argmax(0))


def test_a_picture_cannot_be_made_of_it(server):
    """The result is what the plugin made."""
    assert "it is image/tiff" in said(edited(server, "io_plugin:tiff", output_format="png"))["message"]


@pytest.mark.parametrize(("name", "key"), [("io_plugin:new", "logits"), ("io_plugin:old", "data")])
def test_anything_else_is_json(server, name, key):
    """Of today's interface what the plugin gives, of the older what its ``output_to_response`` makes of that."""
    answer = edited(server, name)
    assert answer.status_code == 200, answer.text
    assert answer.json()["output_format"] == "json"
    made = json.loads(base64.b64decode(answer.json()["data"][0]["b64_json"]))
    expected = water_oracle.logits(ARRAY).tolist() if key == "logits" else "OldPlugin"
    assert made[key] == expected


def test_a_data_url_is_a_file_too(server):
    """What a client names is fetched by the server, within its rules; the plugin gets bytes."""
    url = f"data:image/tiff;base64,{base64.b64encode(CONTENT).decode()}"
    body = {"prompt": "", "image": url, "processor": "io_plugin:tiff"}
    answer = httpx.post(f"{server.url}/v1/images/edits", json=body, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("place", ["/etc/passwd", "file:///etc/passwd", "http://127.0.0.1:1/a.tif"])
def test_no_path_or_address_of_a_clients_reaches_a_plugin(server, place):
    """It would read whatever it is given."""
    body = {"prompt": "", "image": place, "processor": "io_plugin:tiff"}
    answer = httpx.post(f"{server.url}/v1/images/edits", json=body, timeout=60, trust_env=False)
    assert answer.status_code == 400, answer.text
    assert "IO plugin" not in answer.text


@pytest.mark.parametrize(
    "data",
    [
        {"data": "/etc/passwd", "data_format": "path", "out_data_format": "path"},
        {"data": 5, "data_format": "path"},
        {"rows": 16},
        [1, 2],
        5,
        None,
    ],
)
def test_no_data_of_a_clients_reaches_a_plugin(server, data):
    """``/pooling`` takes any JSON for the model's own mapper, and a file alone for a plugin."""
    body = {"data": data, "processor": "io_plugin:new"}
    answer = httpx.post(f"{server.url}/pooling", json=body, timeout=60, trust_env=False)
    assert answer.status_code == 400, answer.text
    assert "IO plugin 'new'" not in answer.text


def test_several_files_are_refused(server):
    """A plugin takes one."""
    files = [("image[]", (f"{name}.tif", CONTENT)) for name in "ab"]
    assert "one file" in said(edited(server, "io_plugin:tiff", files))["message"]


@pytest.mark.parametrize(
    ("name", "fields", "param"),
    [
        ("io_plugin:tiff", {"overlap": "4"}, "overlap"),
        ("io_plugin:tiff", {"output": "classes"}, "output"),
        ("io_plugin:tiff", {"window": "[0,0,4,4]"}, "window"),
        ("io_plugin:absent", {}, "processor"),
    ],
)
def test_what_a_plugin_cannot_honour_is_refused_before_it_runs(server, name, fields, param):
    """The answer names the field."""
    assert said(edited(server, name, **fields))["param"] == param


def test_what_the_plugin_refuses_is_the_clients(server):
    """A file that the model cannot be given; the server's folders are not in the answer."""
    few = io.BytesIO()
    tifffile.imwrite(few, ARRAY[:4], photometric="minisblack")
    for name in ("io_plugin:tiff", "io_plugin:paths"):
        error = said(edited(server, name, [("image", ("few.tif", few.getvalue()))]))
        assert "IO plugin" in error["message"]
        assert "mmout-io-plugin" not in error["message"]


def test_indices_go_along(server):
    """As clients of TerraTorch send them."""
    answer = edited(server, "io_plugin:tiff", indices="[5,1,2,3,4,0]")
    assert answer.status_code == 200, answer.text
    found = tifffile.imread(io.BytesIO(base64.b64decode(answer.json()["data"][0]["b64_json"])))
    np.testing.assert_array_equal(found, water_oracle.logits(ARRAY[[5, 1, 2, 3, 4, 0]]).argmax(0))


def test_more_prompts_than_a_request_may_have(server):
    """The server's limit of tiles holds for what a plugin cuts."""
    tall = io.BytesIO()
    tifffile.imwrite(tall, water_oracle.scene(1, 16 * 9, 8))
    error = said(edited(server, "io_plugin:tiff", [("image", ("tall.tif", tall.getvalue()))]))
    assert "into 9 prompts, and a request may have at most 8" in error["message"]


def test_a_job(server):
    """``/v1/scenes`` counts its prompts, and keeps the plugin's file."""
    answer = httpx.post(
        f"{server.url}/v1/scenes",
        files={"image": ("scene.tif", CONTENT)},
        data={"processor": "io_plugin:tiff"},
        timeout=60,
        trust_env=False,
    )
    assert answer.status_code in {200, 201, 202}, answer.text
    address = f"{server.url}/v1/scenes/{answer.json()['id']}"
    deadline = time.monotonic() + 60
    while (job := httpx.get(address).json())["status"] not in {"completed", "failed"}:
        assert time.monotonic() < deadline, job
        time.sleep(0.1)
    assert job["status"] == "completed", job
    content = httpx.get(f"{address}/content", follow_redirects=True)
    assert content.headers["content-type"] == "image/tiff"
    np.testing.assert_array_equal(tifffile.imread(io.BytesIO(content.content)), water_oracle.logits(ARRAY).argmax(0))


def test_nothing_is_left(server):
    """No copy of a file lies in the server's folders, or in that for temporary files."""
    assert not list(Path(os.environ["TMPDIR"]).rglob("mmout-io-plugin-*"))
