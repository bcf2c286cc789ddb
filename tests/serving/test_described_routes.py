"""The routes of a running server answer as ``/openapi.json`` says, whatever they are sent."""

from __future__ import annotations

import base64
import io
import json
from collections import Counter
from contextlib import ExitStack, closing

import httpx
import pytest
import water_oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from judging import CHECKS, DRIVEN, KEY, answer_of, idle, judge_error, partly
from PIL import Image
from scene_clients import wait_for
from schemathesis_apart import GenerationMode, described, schemathesis
from text_service import text_app
from token_service import image_processor, token_app, tokenizer_in

rasterio = pytest.importorskip("rasterio", reason="it writes the files")

from starlette.testclient import TestClient  # noqa: E402

from vllm_mmout.outputs.formats import SENT  # noqa: E402

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
]
PLACE = rasterio.Affine(30, 0, 5, 0, -30, 7)
EDITS, VARIATIONS, GENERATIONS = (f"/v1/images/{name}" for name in ("edits", "variations", "generations"))
RESULTS, POOLING = "/v1/images/results/{name}", "/pooling"
WITH_BODY = (EDITS, VARIATIONS, GENERATIONS, POOLING)
ROUTES = (*WITH_BODY, RESULTS)
GENERATED, WITH_FILES = 200, 160
"""Requests a route and kind."""
UNREADABLE = {"detail": "There was an error parsing the body"}
"""What vLLM's own route says of a body that is no text."""


def geotiff(seed, side=16):
    """A small scene of the embedded model's bands, as bytes."""
    array = water_oracle.scene(seed, side, side)
    with rasterio.MemoryFile() as file:
        with file.open(driver="GTiff", count=6, height=side, width=side, dtype="uint16", transform=PLACE) as raster:
            raster.write(array)
        return file.read()


def png():
    """A picture of fewer bands than the model takes."""
    buffer = io.BytesIO()
    Image.new("RGB", (16, 16), "blue").save(buffer, "png")
    return buffer.getvalue()


def data_url(content):
    """A file as text."""
    return f"data:image/tiff;base64,{base64.b64encode(content).decode()}"


IMAGES = [geotiff(1), geotiff(2), geotiff(3, 24), geotiff(4)[:-300], png()]
SENSIBLE = {
    "output": st.sampled_from(["classes", "probabilities", "confidence", "polygons", "areas"]),
    "output_format": st.sampled_from(list(SENT)),
    "output_compression": st.integers(0, 100),
    "background": st.sampled_from(["auto", "transparent", "opaque"]),
    "bands": st.permutations(range(1, 7)),
    "indices": st.permutations(range(6)),
    "nodata": st.integers(0, 9000),
    "scale": st.floats(0.0001, 2),
    "offset": st.floats(-1, 1),
    "window": st.tuples(*[st.integers(0, 4)] * 2, *[st.integers(1, 14)] * 2).map(list),
    "tile": st.integers(4, 20),
    "overlap": st.integers(0, 4),
    "blend": st.sampled_from(["cosine", "linear", "none"]),
    "simplify": st.floats(0, 3),
    "processor": st.sampled_from(["segmentation", "nothing"]),
    "user": st.text("abc", max_size=5),
}
OPENAIS = {
    "response_format": st.sampled_from(["b64_json", "url"]),
    "stream": st.booleans(),
    "size": st.just("auto"),
    "n": st.just(1),
}


def some(fields, most=3):
    """A few fields with values that go well together, often."""
    return st.lists(st.sampled_from(sorted(fields)), max_size=most, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: fields[name] for name in names})
    )


class Seen:
    """Sends requests, judges each answer by the description, and counts them."""

    def __init__(self, server, guarded):
        self.server = server
        self.client = httpx.Client(base_url=server.url, timeout=60, trust_env=False)
        self.guarded = httpx.Client(base_url=guarded.url, timeout=60, trust_env=False)
        self.guarded_url = guarded.url
        self.schema = schemathesis.openapi.from_dict(self.client.get("/openapi.json").raise_for_status().json())
        self.counts = Counter()
        self.urls = []
        self._done = set()

    def operation(self, route):
        """One of our routes as it is described."""
        return self.schema[route]["GET" if route == RESULTS else "POST"]

    def judge(self, route, response, case=None, *more):
        """Check an answer: as described, in one form, never a fault of the server, never empty."""
        self.counts[route, response.status_code] += 1
        assert response.status_code < 500, response.text
        if isinstance(response, httpx.Response):
            response.request.read()  # a form is a stream, and a failure shows it
        case = case or self.operation(route).Case(path_parameters={"name": "x"})
        case.validate_response(response, checks=[*CHECKS, *more])
        if response.status_code == 401:
            assert response.json() == {"error": "Unauthorized"}
        elif route == POOLING and response.json() == UNREADABLE:
            assert response.status_code == 400
        elif response.status_code >= 400:
            judge_error(response)
        else:
            assert response.content
            if response.headers["content-type"].startswith("text/event-stream"):
                last = json.loads(response.text.strip().rpartition("data: ")[2])
                assert last["type"] in {"image_edit.completed", "error"}, last
        return response

    def of(self, route):
        """Send everything to one route, once."""
        if route not in self._done:
            self._done.add(route)
            self._generated(route)
            {EDITS: self._files, VARIATIONS: self._files, POOLING: self._data}.get(route, lambda route: None)(route)

    def _generated(self, route):
        modes = (GenerationMode.POSITIVE,) if route == RESULTS else tuple(GenerationMode)
        for mode in modes:  # of a name, every text is a right one
            self._of_mode(route, mode)

    def _of_mode(self, route, mode):
        more = (described.negative_data_rejection,) if mode == GenerationMode.NEGATIVE else ()

        @settings(DRIVEN, max_examples=GENERATED)
        @given(case=self.operation(route).as_strategy(generation_mode=mode))
        def send(case):
            self.judge(route, case.call(base_url=self.server.url, timeout=60), case, *more)

        send()

    def _files(self, route):
        fields = SENSIBLE if route == VARIATIONS else {**SENSIBLE, **OPENAIS}
        ways = ("form", "json") if route == EDITS else ("form",)

        @settings(DRIVEN, max_examples=WITH_FILES * len(ways))
        @given(
            st.sampled_from(ways),
            st.sampled_from([*IMAGES[:3] * 3, *IMAGES]),
            some(fields),
            st.sampled_from([None, None, None, "image/tiff", "image/*", "application/json", "text/html"]),
        )
        def send(way, image, body, accept):
            headers = {} if accept is None else {"Accept": accept}
            if way == "json":
                sent = {"json": {"image": data_url(image), **body}}
            else:
                texts = {name: text if isinstance(text, str) else json.dumps(text) for name, text in body.items()}
                sent = {"data": texts, "files": {"image": ("scene.tif", image)}}
            response = self.judge(route, self.client.post(route, headers=headers, **sent))
            if response.status_code == 200 and body.get("response_format") == "url" and not body.get("stream"):
                self.urls.append(response.json()["data"][0]["url"])

        send()

    def _data(self, route):
        arrays = st.sampled_from([water_oracle.scene(seed, 4, 4).tolist() for seed in range(3)])
        data = arrays | st.sampled_from([data_url(image) for image in IMAGES]) | st.just("file:///etc/passwd")

        @settings(DRIVEN, max_examples=WITH_FILES)
        @given(data, some(SENSIBLE, 2))
        def send(data, body):
            self.judge(route, self.client.post(route, json={"data": data, **body}))

        send()

    def stored(self):
        """Fetch what was stored."""
        self.of(EDITS)
        assert self.urls
        for url in self.urls:
            self.judge(RESULTS, self.client.get(url))

    def special(self, route):
        """Have each further status answered that is described of a route: as a client provokes it."""
        path = route.format(name="none.tif")
        method = "GET" if route == RESULTS else "POST"
        sent = small(route) if route != RESULTS else {}
        self.judge(route, httpx.request(method, f"{self.guarded_url}{path}", **sent))  # 401
        if route == RESULTS:
            return
        kind = "application/json" if route in (GENERATIONS, POOLING) else "text/x"  # vLLM's own route takes any
        wrong = {**KEY, "Content-Type": kind, "Content-Encoding": "gzip"}
        self.judge(route, self.guarded.post(path, headers=wrong, content=b"x"))  # 415
        large = {
            **KEY,
            "Content-Type": "application/json"
            if route in (GENERATIONS, POOLING)
            else "multipart/form-data; boundary=x",
        }
        self.judge(route, self.guarded.post(path, headers=large, content=bytes(2 * 2**20 + 1)))  # 413
        wait_for(lambda: self._refused_as_full(route, path), "the places were not taken")  # 429
        with partly(self.guarded_url, path, large["Content-Type"]) as one:
            self.judge(route, answer_of(one))  # 408
        if route == GENERATIONS:
            return
        self.judge(route, self.guarded.post(path, headers=KEY, **small(route, model="none")))  # 404

    def _refused_as_full(self, route, path):
        """Whether there was no place, while slow clients hold all of them, for a second."""
        with ExitStack() as places:
            slow = [places.enter_context(partly(self.guarded_url, EDITS)) for _ in range(2)]
            answer = self.judge(route, self.guarded.post(path, headers=KEY, **small(route)))
            for one in slow:
                self.judge(EDITS, answer_of(one))
        return answer.status_code == 429

    def text(self):
        """What a model that makes images of text answers, which the server's does not."""
        with TestClient(text_app()) as client:
            self.judge(GENERATIONS, client.post(GENERATIONS, json={"prompt": "a lake"}))
            self.judge(GENERATIONS, client.post(GENERATIONS, json={"prompt": "a lake", "model": "none"}))
            refused = client.post(GENERATIONS, json={"prompt": "a lake"}, headers={"Accept": "text/html"})
            self.judge(GENERATIONS, refused)

    def tokens(self, folder):
        """What a model answers that generates tokens, and no picture this time."""
        app, engine = token_app({"vq_image": image_processor()}, tokenizer_in(folder))
        engine.answer = lambda *_: [[]]
        with TestClient(app) as client:
            self.judge(GENERATIONS, client.post(GENERATIONS, json={"prompt": "a lake"}))


def small(route, **fields):
    """A right request."""
    if route == GENERATIONS:
        return {"json": {"prompt": "a lake", **fields}}
    if route == POOLING:
        return {"json": {"data": data_url(IMAGES[0]), **fields}}
    return {"data": fields, "files": {"image": IMAGES[0]}}


@pytest.fixture(scope="module")
def seen(water_server, guarded_server):
    """What was sent to the routes."""
    made = Seen(water_server, guarded_server)
    with closing(made.client), closing(made.guarded):
        yield made


@pytest.mark.parametrize("route", ROUTES)
def test_whatever_is_sent_is_answered_as_described(seen, route):
    """Generated requests, right and wrong ones, get answers of the declared form; nothing is left of them."""
    seen.of(route)
    assert sum(count for (name, _), count in seen.counts.items() if name == route) >= GENERATED
    assert httpx.get(f"{seen.server.url}/health").status_code == 200
    assert idle(seen.server.url)


def test_every_described_status_is_answered(seen, tmp_path):
    """Of 2,000 requests at least 300 are honoured, and each route gives each answer that is described of it."""
    for route in ROUTES:
        seen.of(route)
        seen.special(route)
    seen.stored()
    seen.text()
    seen.tokens(tmp_path)
    print(dict(sorted(seen.counts.items())))  # noqa: T201
    declared = {
        (route, int(status))
        for route in ROUTES
        for status in seen.operation(route).definition.raw["responses"]
        if status.isdigit()
    }
    assert declared - seen.counts.keys() == set()
    assert seen.counts.total() >= 2000
    assert sum(count for (_, status), count in seen.counts.items() if status == 200) >= 300
    assert idle(seen.server.url)


def test_each_route_is_described_once(seen):
    """No two routes have one name, by which generators of clients call them."""
    paths = seen.schema.raw_schema["paths"]
    names = [operation["operationId"] for path in paths.values() for operation in path.values()]
    assert sorted(set(names)) == sorted(names)
    assert set(ROUTES) <= paths.keys()
