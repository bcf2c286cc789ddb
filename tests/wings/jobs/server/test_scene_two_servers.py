"""Two API servers before two engines: every answer is that of its own input, and jobs are those of both servers."""

from __future__ import annotations

import base64
import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import numpy as np
import pytest
from asked_server import metric
from PIL import Image
from scene_clients import DEADLINE, PALETTE, UNFINISHED, client, listed, long_scene, made, raster, wait_for
from scene_servers import answered_by, api_servers, client_of_each
from scenes_for_tests import classes, pixels, write
from serving import served, stop

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
pytestmark = [pytest.mark.engine, pytest.mark.slow]
FLAGS = ("--api-server-count", "2", "--data-parallel-size", "2")
REQUESTS = 200
AT_ONCE = 16
PLACE = {"crs": "EPSG:32614", "transform": rasterio.Affine(30, 0, 500_000, 0, -30, 3_000_000)}


@pytest.fixture(scope="module")
def two_servers():
    """Both, which keep connections until their clients close them."""
    environment = {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": str(DEADLINE)}
    with served("water-index", *FLAGS, environment=environment, fresh=True) as server:
        yield server
        assert stop(server.process) == 0


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """For each request a GeoTIFF of its own, of its own size, and the classes that it has."""
    folder, rng, found = tmp_path_factory.mktemp("inputs"), np.random.default_rng(7), []
    for number in range(REQUESTS):
        array = pixels(1000 + number, *rng.integers(20, 90, 2))
        found.append((write(folder / f"{number}.tif", array, **PLACE).read_bytes(), classes(array)))
    return folder, found


@pytest.fixture(scope="module")
def long_one(tmp_path_factory):
    """A scene of thousands of tiles, and its classes."""
    return long_scene(tmp_path_factory.mktemp("long") / "long.tif")


class Asking:
    """Sends requests, each by a connection of its own, and notes which server has answered."""

    def __init__(self, server):
        self.url = server.url
        self.processes = api_servers(server)

    def __call__(self, method, path, **more):
        """The answer, and the process that gave it."""
        with client(base_url=self.url) as asking:
            answer = asking.request(method, path, **more)
            return answer, answered_by(answer, self.processes)


def of_data(answer):
    (entry,) = made(answer)["data"]
    return raster(base64.b64decode(entry["b64_json"]))


def in_b64(ask, content, options):
    answer, server = ask("POST", "/v1/images/edits", files={"image": content}, data=options)
    return of_data(answer), {server}


def by_url(ask, content, options):
    options = {**options, "response_format": "url"}
    answer, server = ask("POST", "/v1/images/edits", files={"image": content}, data=options)
    (entry,) = made(answer)["data"]
    fetched, other = ask("GET", entry["url"])
    assert fetched.status_code == 200, fetched.text
    return raster(fetched.content), {server, other}


def as_tiff(ask, content, options):
    headers = {"Accept": "image/tiff"}
    answer, server = ask("POST", "/v1/images/edits", files={"image": content}, data=options, headers=headers)
    assert answer.status_code == 200, answer.text
    return raster(answer.content), {server}


def as_variation(ask, content, options):
    answer, server = ask("POST", "/v1/images/variations", files={"image": content}, data=options)
    return of_data(answer), {server}


def by_pooling(ask, content, options):
    data = f"data:image/tiff;base64,{base64.b64encode(content).decode()}"
    answer, server = ask("POST", "/pooling", json={"data": data, **options})
    return raster(base64.b64decode(made(answer)["data"]["b64_json"])), {server}


def as_scene(ask, content, options):
    answer, server = ask("POST", "/v1/scenes", files={"image": content}, data=options)
    path, servers = f"/v1/scenes/{made(answer)['id']}", {server}

    def finished():
        job, other = ask("GET", path)
        servers.add(other)
        return made(job)["status"] not in UNFINISHED

    wait_for(finished, "a job did not end")
    answer, other = ask("GET", f"{path}/content")
    assert answer.status_code == 200, answer.text
    assert ask("DELETE", path)[0].status_code == 200
    return raster(answer.content), {*servers, other}


def streamed(ask, content, options):
    options = {**options, "stream": "true", "partial_images": "2"}
    answer, server = ask("POST", "/v1/images/edits", files={"image": content}, data=options)
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    events = [json.loads(line) for line in lines]
    assert events[-1]["type"] == "image_edit.completed", events[-1]
    return raster(base64.b64decode(events[-1]["b64_json"])), {server}


ROUTES = (in_b64, by_url, as_tiff, as_variation, by_pooling, as_scene, streamed)


def test_every_answer_is_that_of_its_own_input(two_servers, inputs):
    """Of 200 inputs on all routes, 16 at once; both servers and both engines have worked, and all is forgotten."""
    folder, every = inputs
    ask, rng = Asking(two_servers), np.random.default_rng(8)
    routes = [ROUTES[number % len(ROUTES)] for number in range(REQUESTS)]
    rng.shuffle(routes)
    before = engines(two_servers)

    def one(number):
        content, _ = every[number]
        return routes[number](ask, content, {"output_format": "tiff", **({"tile": 32} if number % 2 else {})})

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(one, range(REQUESTS)))
    for number, ((_, expected), (found, _)) in enumerate(zip(every, answers, strict=True)):
        np.testing.assert_array_equal(found, expected, str(folder / f"{number}.tif {routes[number].__name__}"))
    worked = Counter(server for _, servers in answers for server in servers)
    assert set(worked) == {one.pid for one in ask.processes}
    assert len(worked) == 2
    assert min(worked.values()) > REQUESTS / 10, worked
    for route in (by_url, as_scene):
        assert any(len(servers) == 2 for made_by, (_, servers) in zip(routes, answers, strict=True) if made_by is route)
    after = engines(two_servers)
    assert all(after[engine] - before[engine] > REQUESTS / 10 for engine in ("0", "1")), (before, after)
    assert metric(two_servers, "mmout:decodes_pending") == 0
    with client(base_url=two_servers.url) as asking:
        assert listed(asking) == {}


def engines(server):
    """The requests that each engine has answered."""
    return {engine: metric(server, "vllm:request_success_total", engine=engine) for engine in ("0", "1")}


@pytest.mark.parametrize("turned", [1, -1])
def test_a_job_of_one_server_is_the_others_as_well(two_servers, inputs, turned):
    """It is read, listed, and fetched in whole and in part from the other, as an image by its address is."""
    content, expected = inputs[1][0]
    with client_of_each(two_servers) as clients:
        here, there = clients[::turned]
        job = made(here.post("/v1/scenes", files={"image": ("mine.tif", content)}, data={"tile": 32}))
        path = f"/v1/scenes/{job['id']}"
        done = wait_for(lambda: _finished(made(there.get(path))), "the job did not end")
        assert done == made(here.get(path)) == listed(there)[job["id"]]
        assert (done["status"], done["name"]) == ("completed", "mine.tif")
        one, other = (asking.get(f"{path}/content") for asking in (here, there))
        assert one.content == other.content
        assert one.headers["ETag"] == other.headers["ETag"]
        np.testing.assert_array_equal(raster(other.content), expected)
        part = there.get(f"{path}/content", headers={"Range": "bytes=100-", "If-Range": one.headers["ETag"]})
        assert (part.status_code, part.content) == (206, one.content[100:])
        picture = there.get(f"{path}/content", params={"variant": "preview"}).content
        np.testing.assert_array_equal(rgba(picture), coloured(expected[0]))
        pixel = made(there.get(f"{path}/pixel", params={"row": 3, "col": 5}))
        assert pixel["values"] == [expected[0, 3, 5]]
        assert made(there.delete(path))["deleted"]
        assert [asking.get(path).status_code for asking in (here, there)] == [404, 404]
        form = {"response_format": "url", "output_format": "tiff"}
        (entry,) = made(here.post("/v1/images/edits", files={"image": content}, data=form))["data"]
        np.testing.assert_array_equal(raster(there.get(entry["url"]).content), expected)


@pytest.mark.parametrize("turned", [1, -1])
def test_a_running_job_is_seen_and_cancelled_from_the_other_server(two_servers, long_one, turned):
    """What the other shows of the growing picture is part of the result; tiles end when it deletes the job."""
    content, expected = long_one
    final = coloured(expected[0])
    with client_of_each(two_servers) as clients:
        here, there = clients[::turned]
        before = metric(two_servers, "mmout:decode_seconds_count")
        running, waiting = (
            f"/v1/scenes/{made(here.post('/v1/scenes', files={'image': content}, data={'tile': 32}))['id']}"
            for _ in range(2)
        )
        preview = {"variant": "preview"}
        answer = wait_for(lambda: _seen(there.get(f"{running}/content", params=preview)), "no preview came")
        picture = rgba(answer.content)
        seen = picture[..., 3] > 0
        assert seen.mean() < 1
        np.testing.assert_array_equal(picture[seen], final[seen])
        job = made(there.get(running))
        assert job["status"] == "in_progress"
        assert 1 <= job["tiles"]["done"] < job["tiles"]["total"] == 3969
        assert there.get(f"{running}/content").status_code == 409
        for path in (waiting, running):
            assert made(there.delete(path))["deleted"]
            assert here.get(path).status_code == 404
        wait_for(lambda: _idle(two_servers), "the jobs go on")
        assert metric(two_servers, "mmout:decode_seconds_count") - before < job["tiles"]["total"]
        assert listed(here) == listed(there) == {}


def _finished(job):
    return None if job["status"] in UNFINISHED else job


def _seen(answer):
    """A picture in which something is, if it is one."""
    if answer.status_code == 409:
        assert "ask again" in answer.json()["error"]["message"]
        return None
    assert answer.status_code == 200, answer.text
    return answer if rgba(answer.content)[..., 3].any() else None


def _idle(server):
    """Whether no outputs of the model are decoded for a while."""
    counts = []
    for pause in (1, 0):
        counts.append(metric(server, "mmout:decode_seconds_count"))
        time.sleep(pause)
    return counts[0] == counts[1]


def coloured(ids):
    """RGBA of classes."""
    return np.asarray(PALETTE, np.uint8)[ids]


def rgba(content):
    """The pixels of a PNG, [height, width, 4]."""
    return np.asarray(Image.open(BytesIO(content)).convert("RGBA"))
