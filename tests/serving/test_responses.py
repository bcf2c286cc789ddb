"""Answers: what the openai client, httpx and a raw socket get of them, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import base64
import gc
import io
import json
import socket
import tempfile
import threading
from pathlib import Path

import httpx
import openai
import pytest
from openai.types import ImagesResponse
from PIL import Image
from sending import sending
from starlette.applications import Starlette
from starlette.routing import Route
from watched_results import watched

from vllm_mmout.serving.response.assumptions_header import warnings_header
from vllm_mmout.serving.response.responses import bare_response, json_response, pieces
from vllm_mmout.serving.response.result_files import Encoded, own_folder

pytestmark = pytest.mark.engine
_READ = 3 << 17
SIZES = (0, 1, 2, 3, 1000, _READ - 1, _READ, _READ + 1, 5 * _READ + 2)
PNG = io.BytesIO()
Image.new("RGB", (4, 3), "red").save(PNG, "PNG")


def data(size: int) -> bytes:
    """Bytes that do not repeat evenly."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, with nothing else in it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def on_disk(content: bytes, name: str = "tiff", **known: object) -> Encoded:
    """A result in a file."""
    path = own_folder() / "result"
    path.write_bytes(content)
    return Encoded(path, name, **known)


def png(**known: object) -> Encoded:
    """A picture of 4 x 3 pixels."""
    return Encoded(PNG.getvalue(), "png", size=(4, 3), background="opaque", **known)


class App:
    """Answers every request with what ``make`` makes."""

    def __init__(self, make) -> None:
        self.make = make
        self.asgi = Starlette(
            routes=[
                Route("/v1/images/edits", self.answer, methods=["POST"]),
                Route("/result", self.answer, methods=["GET", "HEAD"]),
            ]
        )

    async def answer(self, request):
        return self.make()

    def get(self, method: str = "GET") -> httpx.Response:
        """Ask once, without a socket."""

        async def ask():
            transport = httpx.ASGITransport(self.asgi)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, "/result")

        return asyncio.run(ask())


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("make", [on_disk, lambda content: Encoded(content, "tiff")], ids=["disk", "memory"])
def test_pieces_are_the_whole(make, as_text):
    """All pieces together are the parts, a result as one base64 text, whatever its size; each is small."""
    for size in SIZES:
        whole = data(size)
        given = list(pieces([b"a", make(whole), b"b"], as_text=as_text))
        assert b"".join(given) == b"a" + (base64.b64encode(whole) if as_text else whole) + b"b"
        assert all(given)
        assert max(map(len, given)) <= 1 << 20
        assert len(given) <= 2 + size // _READ


def test_the_openai_client_reads_the_answer():
    """Its own types accept the answer, and its picture is the one that was sent."""
    app = App(lambda: json_response([png()], tiles=6)).asgi
    with sending(app) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        answer = client.images.edit(image=b"x", prompt="p")
        raw = client.images.with_raw_response.edit(image=b"x", prompt="p").text
    ImagesResponse.model_validate_json(raw() if callable(raw) else raw, strict=True)
    assert base64.b64decode(answer.data[0].b64_json) == PNG.getvalue()
    assert (answer.size, answer.output_format, answer.background) == ("4x3", "png", "opaque")
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (6, 0, 6)
    assert answer.usage.input_tokens_details.image_tokens == 6
    assert answer.created > 1_700_000_000


@pytest.mark.parametrize("size", SIZES)
def test_json_of_any_size(size, temporary):
    """The JSON holds the bytes, its length is told before, and the file is gone afterwards."""
    answer = App(lambda: json_response([on_disk(data(size))], tiles=1)).get()
    assert answer.headers["content-type"] == "application/json"
    assert int(answer.headers["content-length"]) == len(answer.content)
    body = answer.json()
    assert base64.b64decode(body["data"][0]["b64_json"], validate=True) == data(size)
    assert "size" not in body
    assert "background" not in body
    assert not list(temporary.iterdir())


def test_several_processors():
    """Each place names its processor and says what it is itself, in the order asked."""
    labels = [{"processor": name} for name in ("classes", 'a "raw" tensor')]

    def make():
        return json_response([png(), on_disk(b"abc", "npz")], tiles=2, labels=labels)

    body = App(make).get().json()
    assert [one["processor"] for one in body["data"]] == ["classes", 'a "raw" tensor']
    assert [one["output_format"] for one in body["data"]] == ["png", "npz"]
    assert [base64.b64decode(one["b64_json"]) for one in body["data"]] == [PNG.getvalue(), b"abc"]
    assert body["data"][0]["size"] == "4x3"
    assert body["usage"]["input_tokens"] == 2


def test_urls_in_place_of_bytes():
    """A result that was stored is named by its URL, and its bytes are not sent."""
    url = 'http://host/v1/images/results/"x".png'
    app = App(lambda: json_response([png()], tiles=1, urls=[url])).asgi
    with sending(app) as server, openai.OpenAI(base_url=f"{server}/v1", api_key="x", max_retries=0) as client:
        answer = client.images.edit(image=b"x", prompt="p")
    assert [one.url for one in answer.data] == [url]
    assert answer.data[0].b64_json is None
    labels = [{"processor": "c"}, {"output": "d"}]
    two = App(lambda: json_response([png(), png()], tiles=1, urls=["a", "b"], labels=labels)).get().json()
    assert [(one["url"], one.get("processor"), one.get("output")) for one in two["data"]] == [
        ("a", "c", None),
        ("b", None, "d"),
    ]


@pytest.mark.parametrize("size", SIZES)
def test_bare_bytes(size, temporary):
    """The body is the file; HEAD gives its headers alone."""
    app = App(lambda: bare_response(on_disk(data(size)), {"Cache-Control": "no-store"}))
    answer = app.get()
    assert answer.content == data(size)
    assert answer.headers["content-type"] == "image/tiff"
    assert answer.headers["content-length"] == str(size)
    assert answer.headers["content-disposition"] == 'inline; filename="result.tif"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    head = app.get("HEAD")
    assert head.headers == answer.headers
    assert not head.content
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("media_type", ["text/html", "image/svg+xml", "application/octet-stream"])
def test_what_could_be_code_is_not_shown(media_type):
    """Browsers save what an author's to_response gives, unless it is one of our formats."""
    answer = App(lambda: bare_response(Encoded(b"<script>", "bin", media_type=media_type))).get()
    assert answer.headers["content-disposition"] == 'attachment; filename="result.bin"'
    assert answer.headers["content-type"].startswith(media_type)
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("make", [bare_response, lambda entry: json_response([entry], tiles=1)], ids=["bare", "json"])
@pytest.mark.parametrize("before", [0, 100, 1 << 20])
def test_a_client_that_goes_away(make, before, temporary):
    """The file is closed and removed when the connection is, before the first piece or in the middle."""
    made = []

    def answer():
        made.append(watched(1 << 30))
        return make(made[0])

    with sending(App(answer).asgi) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"GET /result HTTP/1.1\r\nHost: x\r\n\r\n")
            got = 0
            while got < before:
                got += len(client.recv(65536))
            while not made:
                pass
        assert made[0].closed.wait(60)
        assert not list(temporary.iterdir())
        assert httpx.get(f"{url}/nothing").status_code == 404


def test_an_answer_that_is_never_sent(temporary):
    """What is collected instead of being sent leaves nothing."""
    answer = json_response([watched(100)], tiles=1)
    assert list(temporary.iterdir())
    del answer
    gc.collect()
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("cancel", ["native", "anyio"])
def test_a_cancelled_answer(cancel, temporary):
    """Cancelling the task that sends closes the result before the task ends."""
    import anyio

    entry = watched(1 << 24)
    answer = bare_response(entry)

    async def main():
        sent = asyncio.Event()

        async def send(message):
            sent.set()
            await asyncio.sleep(1000)

        async def receive():
            await asyncio.sleep(1000)

        scope = {"type": "http", "method": "GET", "asgi": {"spec_version": "2.3"}}
        if cancel == "native":
            task = asyncio.create_task(answer(scope, receive, send))
            await sent.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        else:
            async with anyio.create_task_group() as group:
                group.start_soon(answer, scope, receive, send)
                await sent.wait()
                group.cancel_scope.cancel()
        assert entry.closed.is_set()
        assert not list(temporary.iterdir())

    asyncio.run(main())


def test_nothing_blocks_the_loop(monkeypatch):
    """Files are read, encoded and closed in threads other than the loop's."""
    threads = set()
    original = Encoded.read, Encoded.close

    def read(self, at, count):
        threads.add(threading.get_ident())
        return original[0](self, at, count)

    def close(self):
        threads.add(threading.get_ident())
        original[1](self)

    monkeypatch.setattr(Encoded, "read", read)
    monkeypatch.setattr(Encoded, "close", close)
    assert App(lambda: json_response([on_disk(data(3 * _READ))], tiles=1)).get().status_code == 200
    assert threads
    assert threading.get_ident() not in threads


def test_answers_say_what_was_assumed_about_their_input():
    """JSON has the sentences in a list, a file's answer in a header that any proxy takes; neither has an empty one."""
    sentences = ["Größe: a scale of 0.1 was not applied.\n", *(f"{number}: {'x' * 500}" for number in range(20))]

    async def answers(warnings):
        async def as_json(_request):
            return json_response([Encoded(PNG.getvalue(), "png")], warnings=warnings)

        async def as_file(_request):
            return bare_response(Encoded(PNG.getvalue(), "png"), warnings_header(warnings))

        app = Starlette(routes=[Route("/json", as_json), Route("/file", as_file)])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            return (await client.get("/json")).json(), (await client.get("/file")).headers

    body, headers = asyncio.run(answers(sentences))
    assert body["warnings"] == sentences
    *sent, rest = json.loads(headers["X-MMOut-Warnings"])
    assert sent == sentences[: len(sent)]
    assert rest == f"and {len(sentences) - len(sent)} more"
    assert len(headers["X-MMOut-Warnings"]) < 4096
    body, headers = asyncio.run(answers([]))
    assert "warnings" not in body
    assert "X-MMOut-Warnings" not in headers
