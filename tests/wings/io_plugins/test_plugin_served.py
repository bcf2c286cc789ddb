"""TerraTorch's JSON to ``POST /pooling``, of our server and of vLLM's own: the same answers, the same refusals."""

from __future__ import annotations

import base64
import io
import json
import select
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import numpy as np
import pytest
from asked_server import metric, open_files, posted
from http_server import a_running_server  # noqa: F401 - a fixture
from scenes_for_tests import classes, pixels, write
from serving import COMMAND, served

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]
ARRAY = pixels(61)
PLACE = {"crs": "EPSG:32614", "transform": rasterio.Affine(30, 0, 5, 0, -30, 7)}
VLLMS = ("-m", "vllm.entrypoints.openai.api_server", "--model")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder that clients may name files of."""
    return tmp_path_factory.mktemp("local")


@pytest.fixture(scope="module")
def scene(folder):
    """A scene in it."""
    return write(folder / "scene.tif", ARRAY, **PLACE)


@pytest.fixture(scope="module", params=["ours", pytest.param("vllms", marks=pytest.mark.slow)])
def server(request, folder, water_index):
    """A server with the plugin: by ``vllm-mmout serve``, and by vLLM's own command, which has no routes of ours."""
    flags = ("--io-processor-plugin", "mmout", "--served-model-name", "water")
    rules = ("--allowed-local-media-path", str(folder), "--allowed-media-domains", "127.0.0.1")
    command = COMMAND if request.param == "ours" else VLLMS
    environment = {"MMOUT_FETCH_TIMEOUT": "2", "MMOUT_FETCH_RETRIES": "0"}
    with served(water_index, *flags, *rules, environment=environment, command=command) as server:
        yield server


def is_ours(server):
    """Whether the server has our routes."""
    return "/v1/images/edits" in httpx.get(f"{server.url}/openapi.json", trust_env=False).json()["paths"]


def pooled(server, data, **beside):
    """The answer to data."""
    return httpx.post(f"{server.url}/pooling", json={"data": data, **beside}, timeout=120, trust_env=False)


def read(answer):
    """What rasterio finds in an answer, whose fields are those of the stock plugin."""
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert set(body) == {"request_id", "created_at", "data"}
    assert set(body["data"]) == {"data_format", "data", "request_id"}
    assert body["data"]["data_format"] == "b64_json"
    assert body["data"]["request_id"] == body["request_id"]
    assert abs(body["created_at"] - time.time()) < 300
    return rasterio.open(io.BytesIO(base64.b64decode(body["data"]["data"])))


def test_the_blogs_json(server, scene, running_server):
    """As printed: an address in, a GeoTIFF in base64 out, where the scene lies; ``softmax`` changes nothing."""
    address = running_server.serve("/scene.tif", scene.read_bytes())
    data = {
        "data": address,
        "data_format": "url",
        "image_format": "tiff",
        "out_data_format": "b64_json",
    }
    with read(pooled(server, data, model="water", softmax=False)) as file:
        np.testing.assert_array_equal(file.read(), classes(ARRAY))
        assert (file.driver, file.crs, file.transform, file.nodata) == ("GTiff", PLACE["crs"], PLACE["transform"], 255)


def test_the_address_of_a_stored_result(server, scene):
    """With ``out_data_format`` "url", as the Geospatial Studio's client asks; its ``output_path`` changes nothing."""
    data = {"data": str(scene), "data_format": "path", "out_data_format": "url", "output_path": "/anywhere"}
    answer = pooled(server, data)
    if not is_ours(server):  # it stores nothing
        assert answer.status_code == 400
        return
    answer = answer.json()["data"]
    assert answer["data_format"] == "url"
    stored = httpx.get(answer["data"], timeout=60, trust_env=False).content
    with rasterio.open(io.BytesIO(stored)) as file:
        np.testing.assert_array_equal(file.read(), classes(ARRAY))


LOAD_TOOLS = {
    "vllm bench serve": {"truncate_prompt_tokens": -1},
    "guidellm": {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
}


@pytest.mark.parametrize("beside", LOAD_TOOLS.values(), ids=list(LOAD_TOOLS))
def test_what_load_tools_add(server, scene, beside):
    """`vllm bench serve --backend vllm-pooling` and GuideLLM's `/pooling` add fields, which change nothing."""
    data = {"data": base64.b64encode(scene.read_bytes()).decode(), "data_format": "b64_json"}
    with read(pooled(server, data, model="water", **beside)) as file:
        np.testing.assert_array_equal(file.read(), classes(ARRAY))


@pytest.mark.parametrize("data_format", ["path", "b64_json"])
def test_other_ways_to_name_an_input(server, scene, data_format):
    """A path within the allowed folder, and the file itself; cut into tiles, with bands in another order."""
    data = str(scene) if data_format == "path" else base64.b64encode(scene.read_bytes()).decode()
    fields = {"data": data, "data_format": data_format, "tile": 32, "overlap": 8, "indices": [5, 4, 3, 2, 1, 0]}
    with read(pooled(server, fields)) as file:
        np.testing.assert_array_equal(file.read(), classes(ARRAY[::-1]))


def test_a_name_is_the_clients(server, scene):
    """A request is called as vLLM calls it; several in flight may bear one name, and each has its own answer."""
    windows = [[0, 0, 40, 50], [10, 20, 50, 60], [30, 30, 45, 60]]
    named = {"request_id": "mine", "priority": 1, "user": "me"}

    def ask(window):
        return pooled(server, {"data": str(scene), "data_format": "path", "window": window, "tile": 32}, **named)

    with ThreadPoolExecutor(len(windows)) as threads:
        for (row, col, height, width), answer in zip(windows, threads.map(ask, windows), strict=True):
            with read(answer) as file:
                place = np.s_[:, row : row + height, col : col + width]
                np.testing.assert_array_equal(file.read(), classes(ARRAY)[place])
            assert answer.json()["request_id"] == "pooling-mine"


def mistakes(folder, scene):
    """What clients do wrong, and the field and some words of what they are told."""
    content = scene.read_bytes()
    (folder / "text.tif").write_text("no raster at all, " * 20)
    (folder / "cut.tif").write_bytes(content[: len(content) // 2])
    few, many = write(folder / "few.tif", ARRAY[:3]), write(folder / "many.tif", np.concatenate([ARRAY, ARRAY]))
    outside = write(folder.parent / "outside.tif", ARRAY)

    def path(name, **fields):
        return {"data": str(name), "data_format": "path", **fields}

    return {
        "missing file": (path(folder / "absent.tif"), "data", "there is no file"),
        "not a TIFF": (path(folder / "text.tif"), "data", "not an image"),
        "truncated": (path(folder / "cut.tif"), "data", "truncated or damaged"),
        "too few bands": (path(few), "data", "has 3 bands"),
        "too many bands": (path(many), "data", "has 12 bands"),
        "elsewhere": (path(outside), "data", "not within the folder"),
        "elsewhere, by ..": (path(f"{folder}/../outside.tif"), "data", "not within the folder"),
        "not whole": (path("scene.tif"), "data", "must be absolute"),
        "refused address": ({"data": "http://localhost:9/a.tif", "data_format": "url"}, "data", "not among those"),
        "dead address": ({"data": "http://127.0.0.1:9/a.tif", "data_format": "url"}, "data", "cannot be fetched"),
        "no address": ({"data": "ftp://host/a.tif", "data_format": "url"}, "data", "is no address"),
        "an int": (5, "data", "must be an object"),
        "a file descriptor": ({"data": 5, "data_format": "path"}, "data", "must be a text"),
        "no dict": ([1, 2], "data", "must be an object"),
        "null": (None, "data", "must be an object"),
        "bad base64": ({"data": "no base64!", "data_format": "b64_json"}, "data", "is not base64"),
        "unknown field": (path(scene, overlapp=3), "overlapp", "did you mean 'overlap'"),
        "unknown data_format": (path(scene) | {"data_format": "bytes"}, "data_format", "url, path, b64_json"),
        "where to write": (
            path(scene, out_data_format="path", out_path="/"),
            "out_data_format",
            "send the scene as a job to /v1/scenes",
        ),
        "no such format": (path(scene, image_format="bmp"), "image_format", "png, webp, jpeg"),
        "no such band": (path(scene, indices=[0, 1, 2, 3, 4, 6]), "indices", "band 7"),
        "no such output": (path(scene, output="nothing"), "output", "has no output 'nothing'"),
    }


def test_a_clients_mistakes(server, folder, scene):
    """Each is 400 and says what is wrong, with the field; the server lives, and answers the next."""
    for name, (data, param, words) in mistakes(folder, scene).items():
        answer = pooled(server, data)
        assert answer.status_code == 400, (name, answer.text)
        told = answer.json()["error"]
        assert words in told["message"], (name, told)
        assert (told["param"], told["code"], told["type"]) == (param, 400, "BadRequestError"), (name, told)
    assert pooled(server, {"data": str(scene), "data_format": "path"}, model="no-such").status_code == 404
    with read(pooled(server, {"data": str(scene), "data_format": "path"})) as file:
        np.testing.assert_array_equal(file.read(), classes(ARRAY))
    log = server.log.read_text(errors="replace")
    assert "Traceback" not in log, log[log.index("Traceback") :][:4000]


@pytest.mark.parametrize(
    "fields", [{"data": "/\ud800.tif"}, {"\ud800": 1}, {"data": "http://\ud800/a.tif", "data_format": "url"}], ids=ascii
)
def test_broken_escapes(server, fields):
    """A text that no answer can hold is a mistake like others."""
    content = json.dumps({"data": {"data": "/a.tif", "data_format": "path", **fields}})
    answer = httpx.post(
        f"{server.url}/pooling", content=content, headers={"Content-Type": "application/json"}, trust_env=False
    )
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["code"] == 400


def test_requests_without_data_are_vllms(server):
    """The plugin takes nothing but its own: tokens alone are refused as without it, and an empty request too."""
    answer = httpx.post(f"{server.url}/pooling", json={"input": [1]}, timeout=60, trust_env=False)
    assert (answer.status_code, "takes pictures or tensors" in answer.text) == (400, True), answer.text
    assert httpx.post(f"{server.url}/pooling", json={}, timeout=60, trust_env=False).status_code == 400


def test_who_goes_away_leaves_nothing(server, folder):
    """Tiles of a client that has closed its connection are not run, and its files are closed."""
    large = write(folder / "large.tif", pixels(62, 1000, 1000))
    before = open_files(server)
    running = metric(server, "vllm:num_requests_running")
    scene = {"data": {"data": str(large), "data_format": "path", "tile": 16}}
    for _ in range(5):  # a busy machine may look when all is over
        connection = posted(server, "/pooling", json=scene)
        until(lambda: met(server, running) or answered(connection))  # noqa: B023 - called at once
        if not answered(connection):
            break
        with closing(connection), connection.getresponse() as response:
            assert response.status == 200, response.read()
    else:
        pytest.fail("the scene was over each time before it was seen")
    connection.close()
    until(lambda: metric(server, "vllm:num_requests_running") == 0 and not named(server, "large.tif"))
    assert open_files(server) <= before


def met(server, running):
    """Whether the server works on a scene."""
    return metric(server, "vllm:num_requests_running") > running or named(server, "large.tif")


def answered(connection):
    """Whether a server has begun to answer."""
    return bool(select.select([connection.sock], [], [], 0)[0])


def named(server, name):
    """Whether the server has a file open."""
    return any(path.endswith(name) for path in open_files(server))


def until(holds):
    """Wait for what comes with time."""
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_limits_hold(server, scene):
    """Of tiles, as of any request to a server."""
    answer = pooled(server, {"data": str(scene), "data_format": "path", "tile": 1})
    assert answer.status_code == 400
    assert "--mmout-max-tiles" in answer.json()["error"]["message"]


def test_an_option_beside_data(server, scene):
    """Ours refuses what would change nothing; vLLM's route passes over all that it does not know."""
    answer = pooled(server, {"data": str(scene), "data_format": "path"}, window=[0, 0, 10, 10])
    if is_ours(server):
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "window")
    else:
        with read(answer) as file:
            assert file.shape == ARRAY.shape[1:]
    assert pooled(server, {"data": str(scene), "data_format": "path"}, priority="first").status_code == 400


def test_the_answer_is_json_of_a_known_length(server, scene):
    """It says how long it is, on our server before it is made."""
    answer = pooled(server, {"data": str(scene), "data_format": "path"})
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert json.loads(answer.content)["data"]["data_format"] == "b64_json"
