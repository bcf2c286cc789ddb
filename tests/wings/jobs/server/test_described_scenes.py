"""The routes of jobs answer as ``/openapi.json`` says, whatever they are sent."""

from __future__ import annotations

import base64
from collections import Counter
from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judging import CHECKS, DRIVEN, KEY, answer_of, idle, judge_error, partly
from scene_clients import client, ended, made, wait_for
from scenes_for_tests import pixels
from schemathesis_apart import GenerationMode, described, schemathesis

rasterio = pytest.importorskip("rasterio", reason="it writes the files")
pytestmark = [pytest.mark.engine, pytest.mark.slow]
SCENES, PREVIEW, ONE = "/v1/scenes", "/v1/scenes/preview", "/v1/scenes/{scene_id}"
CONTENT, PIXEL, FIGURE = (f"{ONE}/{below}" for below in ("content", "pixel", "figure"))
WITH_BODY = (("POST", SCENES), ("POST", PREVIEW))
OF_ONE = (("GET", ONE), ("GET", CONTENT), ("GET", PIXEL), ("GET", FIGURE), ("DELETE", ONE))
ROUTES = (*WITH_BODY, ("GET", SCENES), *OF_ONE)
GENERATED = 80
"""Requests a route and kind."""
NONE = "scene_" + "a" * 43


def scene_of(array):
    """The bytes of a GeoTIFF."""
    with rasterio.MemoryFile() as memory:
        shape = {"count": len(array), "height": array.shape[1], "width": array.shape[2], "dtype": array.dtype}
        place = {"crs": "EPSG:32614", "transform": rasterio.Affine(30, 0, 5e5, 0, -30, 3e6)}
        with memory.open(driver="GTiff", **shape, **place) as file:
            file.write(array)
        return memory.read()


SMALL, LONG = scene_of(pixels(1, 40, 50)), scene_of(pixels(2, 1024, 1024))
BAD = scene_of(pixels(1, 16, 16)[:5])
RIGHT = {"data": {}, "files": {"image": ("scene.tif", SMALL)}}


class Seen:
    """Sends requests, judges each answer by the description, and counts them."""

    def __init__(self, asking, guarded):
        self.asking, self.guarded = asking, guarded
        self.schema = schemathesis.openapi.from_dict(made(asking.get("/openapi.json")))
        self.counts = Counter()
        self.ids = [NONE, "x"]

    def operation(self, route):
        """One of the routes as it is described."""
        method, path = route
        return self.schema[path][method]

    def judge(self, route, response, case=None, *more):
        """Check an answer: as described, in one form, never a fault of the server, never empty."""
        self.counts[route, response.status_code] += 1
        assert response.status_code < 500, response.text
        if case is None:
            response.request.read()  # a form is a stream, and a failure shows it
            case = self.operation(route).Case(path_parameters={"scene_id": "x"}, query={"row": 0, "col": 0})
        case.validate_response(response, checks=[*CHECKS, *more])
        if response.status_code == 401:
            assert response.json() == {"error": "Unauthorized"}
        elif response.status_code >= 400:
            judge_error(response)
        else:
            assert response.content
        return response

    def ask(self, route, scene_id=NONE, by=None, **more):
        """Send one request and judge its answer."""
        method, path = route
        return self.judge(route, (by or self.asking).request(method, path.format(scene_id=scene_id), **more))

    def sent(self, content, **fields):
        """Make a job; its id."""
        return self.ask(("POST", SCENES), files={"image": ("a.tif", content)}, data=fields).json()["id"]

    def generated(self, route, mode):
        """Send what the description makes, of jobs that are there among others."""
        rejected = mode == GenerationMode.NEGATIVE and route not in OF_ONE  # there any text is a right id
        more = (described.negative_data_rejection,) if rejected else ()

        @settings(DRIVEN, max_examples=GENERATED)
        @given(
            case=self.operation(route).as_strategy(generation_mode=mode), scene_id=st.sampled_from([None, *self.ids])
        )
        def send(case, scene_id):
            if scene_id is not None and route in OF_ONE and route[0] == "GET":
                case.path_parameters["scene_id"] = scene_id
            self.judge(route, case.call(base_url=str(self.asking.base_url), timeout=60), case, *more)

        send()

    def bodies(self, route):
        """Have each status answered that is described of a route with a body."""
        kind = "multipart/form-data; boundary=x"
        self.ask(route, by=self.guarded, **RIGHT)  # 401
        self.ask(route, by=self.guarded, headers={**KEY, "Content-Type": "text/x"}, content=b"x")  # 415
        large = {**KEY, "Content-Type": kind}
        self.ask(route, by=self.guarded, headers=large, content=bytes(2 * 2**20 + 1))  # 413
        url = str(self.guarded.base_url)
        wait_for(lambda: self.refused_as_full(route, url), "the places were not taken")  # 429
        with partly(url, route[1]) as one:
            self.judge(route, answer_of(one))  # 408
        self.ask(route, json={"image": "no address"})  # 400
        self.ask(route, **RIGHT)  # 200

    def refused_as_full(self, route, url):
        """Whether there was no place, while slow clients hold all of them, for a second."""
        with ExitStack() as places:
            slow = [places.enter_context(partly(url, PREVIEW)) for _ in range(2)]
            full = self.ask(route, by=self.guarded, headers=KEY, **RIGHT).status_code == 429
            for one in slow:
                self.judge(("POST", PREVIEW), answer_of(one))
        return full


@pytest.fixture(scope="module")
def seen(water_server, guarded_server):
    """What was sent to the routes; jobs that are completed and failed are there."""
    with client(base_url=water_server.url) as asking, client(base_url=guarded_server.url) as guarded:
        found = Seen(asking, guarded)

        found.ids += [found.sent(SMALL), found.sent(SMALL, output="polygons"), found.sent(BAD)]
        ended(asking, found.ids[2:])
        yield found
        for job in made(asking.get(SCENES, params={"limit": 100}))["data"]:
            asking.delete(f"{SCENES}/{job['id']}")


@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
def test_whatever_jobs_are_asked_is_answered_as_described(seen, route):
    """Generated requests, right and wrong ones, get answers of the declared form."""
    for mode in GenerationMode:
        if mode == GenerationMode.NEGATIVE and route in (("GET", ONE), ("DELETE", ONE)):
            continue  # of an id, every text is a right one
        seen.generated(route, mode)
    assert sum(count for (name, _), count in seen.counts.items() if name == route) >= GENERATED


def test_every_described_status_of_jobs_is_answered(seen):
    """Each route gives each answer that is described of it, in the form that is."""
    for route in WITH_BODY:
        seen.bodies(route)
    done, polygons, failed = seen.ids[2:]
    running = seen.sent(LONG, tile="16")
    seen.ask(("POST", SCENES), json={"image": f"data:;base64,{base64.b64encode(SMALL).decode()}", "model": "none"})
    for query in ({}, {"limit": 0}, {"after": NONE}):
        seen.ask(("GET", SCENES), params=query)
    seen.ask(("GET", SCENES), by=seen.guarded)
    for route in OF_ONE[:4]:
        for one in (done, failed, running, NONE):
            seen.ask(route, one, params={"row": 1, "col": 2})
        seen.ask(route, by=seen.guarded, params={"row": 1, "col": 2})
    seen.ask(("GET", PIXEL), done)
    seen.ask(("GET", FIGURE), polygons)
    for query, header in (
        ({"variant": "other"}, None),
        ({"variant": "preview"}, None),
        ({"variant": "preview"}, "bytes=0-9"),
        ({}, "bytes=5-9"),
        ({}, "bytes=999999999-"),
    ):
        seen.ask(("GET", CONTENT), done, params=query, headers={} if header is None else {"Range": header})
    for job in (running, done, NONE):
        seen.ask(("DELETE", ONE), job)
    seen.ask(("DELETE", ONE), by=seen.guarded)
    declared = {
        (route, int(status))
        for route in ROUTES
        for status in seen.operation(route).definition.raw["responses"]
        if status.isdigit()
    }
    print(dict(sorted(seen.counts.items())))  # noqa: T201
    assert declared - seen.counts.keys() == set()
    assert len({route for route, _ in declared}) == len(ROUTES)


def test_nothing_of_it_is_left(seen, water_server):
    """When the jobs are deleted the server has nothing under way."""
    for job in made(seen.asking.get(SCENES, params={"limit": 100}))["data"]:
        seen.ask(("DELETE", ONE), job["id"])
    assert idle(water_server.url)


def test_no_route_of_jobs_is_missing(seen):
    """All that jobs describe below /v1/scenes is asked here. Map tiles and STAC items of jobs have their own tests."""
    paths = seen.schema.raw_schema["paths"]
    operations = [
        ((method.upper(), path), operation["tags"])
        for path, methods in paths.items()
        if path.startswith(SCENES)
        for method, operation in methods.items()
    ]
    assert {tag for _, tags in operations for tag in tags} == {"scenes", "map tiles", "STAC"}
    assert {route for route, tags in operations if tags == ["scenes"]} == set(ROUTES)
