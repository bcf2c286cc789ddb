"""``POST /pooling`` of a running server: any JSON for the model's mapper, and the model's answer."""

from __future__ import annotations

import base64
import io
import json
import os
import select
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pytest
from asked_server import posted
from metrics_page import lines_of
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from scenes_for_tests import classes, pixels, write
from served_models import CALM, PLACES, WAITS

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]
ARRAY = pixels(41)
DEEP = json.loads("[" * 40 + "]" * 40)


def pooled(server, data, **options):
    """The answer to data."""
    return httpx.post(f"{server.url}/pooling", json={"data": data, **options}, timeout=60, trust_env=False)


def given(server, data, **options):
    """What came of data."""
    answer = pooled(server, data, **options)
    assert answer.status_code == 200, answer.text
    assert set(answer.json()) == {"request_id", "created_at", "data"}
    return answer.json()["data"]


def error(answer, status=400):
    """The error of an answer, in OpenAI's form."""
    assert answer.status_code == status, answer.text
    (told,) = answer.json().values()
    assert set(told) == {"message", "type", "param", "code"}
    assert told["code"] == status
    return told


def failures(server):
    """Failed requests by kind, as the server counts them."""
    text = httpx.get(f"{server.url}/metrics").text
    counted = {}
    for family in text_string_to_metric_families(lines_of(text, "mmout:failures_total")):
        for sample in family.samples:
            if sample.name == "mmout:failures_total":
                counted[sample.labels["kind"]] = counted.get(sample.labels["kind"], 0) + sample.value
    return counted


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A small GeoTIFF as a data URL, and its path."""
    path = write(tmp_path_factory.mktemp("scene") / "scene.tif", ARRAY)
    return f"data:image/tiff;base64,{base64.b64encode(path.read_bytes()).decode()}", path


@pytest.mark.parametrize(
    "data",
    [
        {"a": [1, 2.5, None, True, "x"]},
        {"type": "Feature", "prompt": "p", "prompt_token_ids": [1], "multi_modal_data": {"image": 3}},
        {"values": [1, 2]},
        {},
        [5],
        [[1, 2], [3]],
        [],
        None,
        0,
        {"deep": DEEP},
    ],
)
def test_any_json_reaches_the_mapper_as_it_is(own_server, data):
    """Tables with names of prompts or of ``forward`` too, lists of one, null, and what is nested deeply."""
    assert given(own_server, data, processor="echo") == {"given": data, "tile": None}


@pytest.mark.parametrize("data", ["file:///etc/passwd", "http://127.0.0.1:1/a.png", "data:image/png;base64,xx", "/a"])
def test_texts_of_such_a_model_name_nothing(own_server, data):
    """A text that looks like an address is a text."""
    assert base64.b64decode(given(own_server, data, processor="chart")["b64_json"]).decode() == data


def test_a_table_becomes_tensors(own_server):
    """A table of columns runs through the model; its tensor comes as nested lists by name."""
    table = {"temperature": [1, 2.5], "rain": [0, -3.25]}
    assert given(own_server, table, processor="numbers") == {"output": [[1, 2.5], [0, -3.25]]}


def test_what_is_no_number_is_null(own_server):
    """JSON has neither NaN nor infinity."""
    answer = pooled(own_server, "nan", processor="numbers")
    assert json.loads(answer.text, parse_constant=pytest.fail)["data"] == {"output": [1, None, None]}


def test_options_stand_beside_the_data(own_server):
    """They reach the processor, and the name of the model may be there."""
    assert given(own_server, 1, processor="echo", tile=7, model="any") == {"given": 1, "tile": 7}


def test_pictures_come_as_files(own_server):
    """Of several processors each gives its own, by name."""
    results = given(own_server, "hello", processor=["numbers", "picture", "chart"])
    assert list(results) == ["numbers", "picture", "chart"]
    picture = results["picture"]
    assert (picture["output_format"], picture["size"]) == ("png", "5x1")
    content = base64.b64decode(picture["b64_json"])
    assert Image.open(io.BytesIO(content)).tobytes() == b"hello"
    assert results["numbers"] == {"output": list(b"hello")}
    (jpeg,) = given(own_server, "hello", processor=["picture"], output_format="jpeg").values()
    assert Image.open(io.BytesIO(base64.b64decode(jpeg["b64_json"]))).format == "JPEG"


def test_a_request_has_a_name_and_a_time(own_server):
    """As in vLLM's answers of IO plugins; the name holds the client's."""
    from vllm.entrypoints.pooling.pooling.protocol import IOProcessorResponse

    answer = httpx.post(f"{own_server.url}/pooling", json={"data": "a"}, headers={"X-Request-Id": "mine"}).json()
    told = IOProcessorResponse.model_validate(answer)
    assert "mine" in told.request_id
    assert abs(told.created_at - time.time()) < 600
    assert not told.model_extra


@pytest.mark.parametrize(
    ("data", "options", "param", "told"),
    [
        ("raises", {}, "data", "ZeroDivisionError"),
        ("nonsense", {}, "data", "got int"),
        ("", {}, "data", "empty"),
        ({"temperature": [1], "rain": ["x"]}, {}, "data", "ValueError"),
        ({"temperature": [1, 2], "rain": [1]}, {}, "data", "inhomogeneous"),
        ("a", {"procesor": "echo"}, "procesor", "processor"),
        ("a", {"processor": "none-such"}, "processor", "none-such"),
        ("a", {"path": "x.tif"}, "path", "save the answer"),
        ("a", {"stream": True}, "stream", "not supported"),
        ("a", {"output_format": "tiff2"}, "output_format", "tiff2"),
        ("a", {"processor": "numbers", "output_format": "png"}, "output_format", "json"),
    ],
)
def test_what_is_wrong_is_a_bad_request(own_server, data, options, param, told):
    """Each says what and where, is counted once, and the next request is answered."""
    before = failures(own_server)
    problem = error(pooled(own_server, data, **options))
    assert (problem["param"], problem["type"]) == (param, "BadRequestError")
    assert told in problem["message"]
    after = failures(own_server)
    assert sum(after.values()) == sum(before.values()) + 1
    assert given(own_server, 1, processor="echo")["given"] == 1


def test_an_unknown_model_is_not_found(own_server):
    """As in vLLM's routes."""
    assert error(pooled(own_server, 1, model="gpt"), 404)["param"] == "model"


def test_broken_json_is_a_bad_request(own_server):
    """Where it looks like ours the error is ours, and counted; else it is vLLM's."""
    before = failures(own_server)
    for body, ours in ((b'{"data": [1,', True), (b'{"data": 1, "data": 2}', True), (b"{", False)):
        answer = httpx.post(
            f"{own_server.url}/pooling", content=body, headers={"Content-Type": "application/json"}, timeout=60
        )
        told = error(answer)
        assert ("valid JSON" in told["message"] or "twice" in told["message"]) == ours
    assert sum(failures(own_server).values()) == sum(before.values()) + 2


def test_a_raster_is_sent_as_a_data_url(water_server, scene):
    """Where the model takes rasters a text is an address; the answer is a file with its size."""
    url, _ = scene
    result = given(water_server, url, output_format="tiff", bands=[1, 2, 3, 4, 5, 6])
    assert (result["output_format"], result["size"]) == ("tiff", "90x75")
    with rasterio.MemoryFile(base64.b64decode(result["b64_json"])) as file, file.open() as raster:
        np.testing.assert_array_equal(raster.read(), classes(ARRAY))
    assert Image.open(io.BytesIO(base64.b64decode(given(water_server, url)["b64_json"]))).size == (90, 75)


def test_results_that_are_json_come_as_json(water_server, scene):
    """The areas of the classes are an object, not a file, of JSON."""
    areas = given(water_server, scene[0], output="areas")
    assert sum(row["pixels"] for row in next(rows for rows in areas.values() if isinstance(rows, list))) == 75 * 90


@pytest.mark.parametrize("make", [Path.as_uri, str, lambda path: [str(path)], lambda path: {"red": str(path)}])
def test_files_of_the_server_are_not_read(water_server, scene, make):
    """Neither by path nor by file:// address, alone or in lists and tables."""
    problem = error(pooled(water_server, make(scene[1])))
    assert problem["param"] == "data"
    assert "6 bands" not in problem["message"]


@pytest.mark.parametrize("data", [None, 5, [], {}, [1, 2], True, {"prompt": "x"}, {"prompt_token_ids": [1]}, [[[1]]]])
def test_what_is_no_raster_is_a_bad_request(water_server, data):
    """Other JSON than addresses is refused by a model of rasters."""
    error(pooled(water_server, data))
    assert httpx.get(f"{water_server.url}/health").status_code == 200


class Waiting:
    """Requests for which the mapper waits, until their clients go away."""

    def __init__(self, server):
        self.server = server
        self.holds = Path(os.environ["MMOUT_TEST_HOLDS"])
        self.connections = []

    def send(self, count):
        for _ in range(count):
            (self.holds / WAITS).unlink(missing_ok=True)
            until(self._is_taken)

    def _is_taken(self):
        """Send one request; False where it is refused, as the place of one that was just answered is not yet free."""
        came, connection = self.holds / WAITS, posted(self.server, "/pooling", json={"data": WAITS})
        until(lambda: came.exists() or select.select([connection.sock], [], [], 0)[0])
        if came.exists():
            self.connections.append(connection)
            return True
        connection.close()
        return False

    def end(self):
        for connection in self.connections:
            connection.close()

    def calm(self):
        (self.holds / CALM).touch()


def until(holds):
    """Wait for something that must come."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_mappers_that_hang_hold_nobody_up(own_server):
    """A place less is left as long as the client waits; raw requests need none; when it goes the place is free."""
    raw = {"model": "any", "input": [1]}
    url = f"{own_server.url}/pooling"
    usual = httpx.post(url, json=raw)
    waiting = Waiting(own_server)
    with ExitStack() as stack:
        stack.callback(waiting.calm)
        stack.callback(waiting.end)
        waiting.send(PLACES - 1)
        assert given(own_server, 1, processor="echo")["given"] == 1
        waiting.send(1)
        full = pooled(own_server, 1)
        assert error(full, 429)["type"] == "RateLimitError"
        assert int(full.headers["retry-after"]) > 0
        assert httpx.post(url, json=raw).json() == usual.json()
        assert error(httpx.post(url, json={**raw, "user": "x" * (1 << 17)}), 429)
        assert httpx.get(f"{own_server.url}/load").json()["server_load"] == PLACES
        waiting.end()
        until(lambda: httpx.get(f"{own_server.url}/load").json()["server_load"] == 0)
        assert given(own_server, 1, processor="echo")["given"] == 1
