"""Events: what the openai client makes of a stream, and how streams end."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import tempfile
import threading
from pathlib import Path

import httpx
import openai
import pytest
from openai.types import (
    ImageEditCompletedEvent,
    ImageEditPartialImageEvent,
    ImageGenCompletedEvent,
    ImageGenPartialImageEvent,
)
from sending import sending
from starlette.applications import Starlette
from starlette.routing import Route

from vllm_mmout.errors import OptionError
from vllm_mmout.serving.response.events import EventsResponse, completed, partial_image
from vllm_mmout.serving.response.responses import usage
from vllm_mmout.serving.response.result_files import Encoded, own_folder

pytestmark = pytest.mark.engine
PNG = b"\x89PNG" + bytes(range(256))
LARGE = bytes(range(256)) * 6000 + b"xy"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, with nothing else in it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def png(content: bytes = PNG) -> Encoded:
    """A picture."""
    return Encoded(content, "png", size=(4, 3), background="opaque")


def on_disk(content: bytes) -> Encoded:
    """A result in a file."""
    path = own_folder() / "result"
    path.write_bytes(content)
    return Encoded(path, "tiff", size=(1280, 1200))


def app(events) -> Starlette:
    """Answers with a stream of events."""

    async def answer(request):
        return EventsResponse(events(), "edit-1")

    paths = ("/v1/images/edits", "/v1/images/generations")
    return Starlette(routes=[Route(path, answer, methods=["GET", "POST"]) for path in paths])


def received(events, kind: str = "image_edit") -> list[object]:
    """The events of a stream as the openai client has them."""
    with sending(app(events)) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        if kind == "image_edit":
            return list(client.images.edit(image=b"x", prompt="p", stream=True))
        return list(client.images.generate(prompt="p", stream=True))


def raw(events) -> httpx.Response:
    """The answer as it is on the wire."""

    async def ask():
        transport = httpx.ASGITransport(app(events))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post("/v1/images/edits")

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("kind", "partial", "last"),
    [
        ("image_edit", ImageEditPartialImageEvent, ImageEditCompletedEvent),
        ("image_generation", ImageGenPartialImageEvent, ImageGenCompletedEvent),
    ],
)
def test_the_openai_client_reads_the_events(kind, partial, last):
    """Its own types, strictly, accept previews and the result; comments between them are passed over."""

    async def events():
        yield None
        for index in range(3):
            yield partial_image(kind, index, png(PNG + bytes([index])))
            yield None
        yield completed(kind, png(), used=usage(12))

    got = received(events, kind)
    assert [type(one) for one in got] == [partial] * 3 + [last]
    for one in got:
        type(one).model_validate_json(one.model_dump_json(), strict=True)
        assert (one.size, one.output_format, one.background, one.quality) == ("4x3", "png", "opaque", "auto")
    assert [one.partial_image_index for one in got[:3]] == [0, 1, 2]
    assert [base64.b64decode(one.b64_json) for one in got] == [PNG + bytes([index]) for index in range(3)] + [PNG]
    assert got[3].usage.input_tokens == got[3].usage.input_tokens_details.image_tokens == 12
    assert got[3].usage.total_tokens == 12
    assert got[3].created_at > 1_700_000_000


def test_events_on_the_wire():
    """Each event is a name and a line of JSON whose type is that name; the last one ends the stream."""

    async def events():
        yield None
        yield partial_image("image_edit", 0, png())
        yield completed("image_edit", png(), used=usage(1))

    answer = raw(events)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"
    comment, first, last, end = answer.text.split("\n\n")
    assert (comment, end) == (":", "")
    for event, name in ((first, "image_edit.partial_image"), (last, "image_edit.completed")):
        head, line = event.split("\n")
        assert head == f"event: {name}"
        assert json.loads(line.removeprefix("data: "))["type"] == name


def test_large_results_go_in_pieces(temporary):
    """A result on disk is one line of data, and the file is gone afterwards."""

    async def events():
        yield completed("image_edit", on_disk(LARGE), used=usage(9))

    (got,) = received(events)
    assert base64.b64decode(got.b64_json) == LARGE
    assert (got.size, got.output_format, got.background) == ("1280x1200", "tiff", "auto")
    assert not list(temporary.iterdir())


def test_several_processors_have_an_event_each():
    """Each result's event names its processor, in the order asked; without pixels the size is "auto"."""

    async def events():
        yield completed("image_edit", png(), used=usage(2), processor="classes")
        yield completed("image_edit", Encoded(b"PK", "npz"), used=usage(2), processor="raw")

    got = received(events)
    assert [one.processor for one in got] == ["classes", "raw"]
    assert [one.size for one in got] == ["4x3", "auto"]
    assert "processor" not in json.loads(
        completed("image_edit", png(), used=usage(2)).parts[0].split(b"data: ")[1] + b'"}'
    )


def test_an_error_in_the_stream_raises_in_the_client():
    """What fails after the first event is an event at which the client raises, with message, param and code."""

    async def events():
        yield partial_image("image_edit", 0, png())
        raise OptionError("tile must be 8 or more, got 7", param="tile")

    got = []
    with sending(app(events)) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        stream = client.images.edit(image=b"x", prompt="p", stream=True)
        with pytest.raises(openai.APIError, match="tile must be 8 or more, got 7") as raised:
            got += stream
    assert raised.value.param == "tile"
    assert str(raised.value.code) == "400"
    assert raised.value.type == "BadRequestError"
    assert "event: error\ndata: {" in raw(events).text


@pytest.mark.parametrize("error", [OptionError("no", param="tile"), RuntimeError("/secret/path")])
def test_an_error_before_the_stream_has_its_status(error):
    """What fails before the first event is an answer with a status: the client raises as without a stream."""

    async def events():
        raise error
        yield

    if isinstance(error, OptionError):
        with pytest.raises(openai.BadRequestError) as raised:
            received(events)
        assert raised.value.param == "tile"
    else:
        answer = raw(events)
        assert answer.status_code == 500
        assert "secret" not in answer.text
        assert "edit-1" in answer.json()["error"]["message"]


def test_a_stream_without_events_is_an_error():
    """A request that ends with nothing is no empty 200."""

    async def events():
        return
        yield

    answer = raw(events)
    assert answer.status_code == 500
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize("waits", ["for the engine", "for the client"])
def test_a_client_that_goes_away(waits, temporary):
    """The iterator is closed, its own clean-up done to the end, and the files of events are gone."""
    ended, running = threading.Event(), threading.Event()

    async def events():
        try:
            yield partial_image("image_edit", 0, png())
            running.set()
            if waits == "for the engine":
                await asyncio.sleep(1000)
            while True:
                yield completed("image_edit", on_disk(LARGE * 20), used=usage(1))
        finally:
            await asyncio.sleep(0.01)
            ended.set()

    with sending(app(events)) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"POST /v1/images/edits HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            assert client.recv(10)
            assert running.wait(60)
        assert ended.wait(60)
    assert not list(temporary.iterdir())


def test_a_request_that_the_server_cancels():
    """A cancellation that is not the client's ends the stream with an error, rather than leave it open."""

    async def events():
        yield partial_image("image_edit", 0, png())
        raise asyncio.CancelledError

    assert "ServiceUnavailableError" in raw(events).text.rpartition("event: error")[2]


def test_a_cleanup_that_fails():
    """What fails while the iterator is closed ends the stream with an error as well."""

    class Failing:
        def __aiter__(self):
            return self

        async def __anext__(self):
            raise StopAsyncIteration

        async def aclose(self):
            raise OptionError("no", param="tile")

    assert raw(Failing).status_code == 400


def test_a_disk_that_fails_breaks_the_stream(temporary):
    """A result that cannot be read any more ends the connection, rather than be cut off silently."""

    async def events():
        entry = on_disk(LARGE)
        entry.close()
        yield completed("image_edit", entry, used=usage(1))

    with pytest.raises(ValueError, match="closed or stored"):
        raw(events)


def test_events_of_any_iterator():
    """An iterator that cannot be closed will do."""

    class Once:
        def __init__(self) -> None:
            self.left = [completed("image_edit", png(), used=usage(1))]

        def __aiter__(self):
            return self

        async def __anext__(self):
            if not self.left:
                raise StopAsyncIteration
            return self.left.pop()

    assert raw(Once).text.startswith("event: image_edit.completed\n")
