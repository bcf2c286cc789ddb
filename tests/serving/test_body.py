"""Bodies of requests: what is read, what is refused, and that nothing is left open."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
import threading
import tracemalloc
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import httpx
import openai
import pytest
import uvicorn
from files_open import open_below
from sent_requests import Sent, incoming, multipart, sent_by
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.routing import Route

from vllm_mmout.serving.errors import ApiError, error_response
from vllm_mmout.serving.options import ServingOptions
from vllm_mmout.serving.request.body import read_form
from vllm_mmout.serving.request.json_body import read_json
from vllm_mmout.serving.response.responses import discard

pytestmark = pytest.mark.engine

OPTIONS = ServingOptions()
MIB = 1 << 20
LARGE = os.urandom(3 * MIB)
"""More than is kept in memory."""
FORM = "multipart/form-data; boundary=xyz"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Where a test's temporary files are, of which none may stay open."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    assert open_below(tmp_path) == []


async def form_of(sent: Sent, options: ServingOptions = OPTIONS, **how):
    return await read_form(incoming(sent.body, sent.headers, **how), options)


async def refused(request, options: ServingOptions = OPTIONS, read=read_form) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await read(request, options)
    return caught.value


@pytest.mark.parametrize("piece", [1, 7, 1 << 16])
async def test_a_form_of_openais_client_comes_back_whatever_the_pieces_it_comes_in(piece) -> None:
    """Fields and files, in the order sent, byte for byte."""
    sent = sent_by(
        lambda client: client.images.edit(
            image=[("a/b.tif", b"first"), ("c.png", b"\r\n--second")],
            prompt="Ü & water",
            extra_body={"bands": [2, "B8A"]},
        )
    )
    form = await form_of(sent, piece=piece)
    assert form.fields == {"prompt": ["Ü & water"], "bands[]": ["2", "B8A"]}
    assert [(upload.name, upload.file.read(), upload.size) for upload in form.files["image[]"]] == [
        ("b.tif", b"first", 5),
        ("c.png", b"\r\n--second", 10),
    ]
    form.close()


@pytest.mark.parametrize("size", [MIB, MIB + 1, 3 * MIB])
async def test_a_file_lies_on_disk_without_a_name_from_a_mebibyte_on(size, folder) -> None:
    """It is whole, at its start, seekable, and closed with the form."""
    form = await form_of(multipart(("image", ("x.tif", LARGE[:size]))))
    (upload,) = form.files["image"]
    assert upload.file.tell() == 0
    assert upload.file.read() == LARGE[:size]
    assert upload.size == size
    assert upload.file.seek(0) == 0
    assert len(open_below(folder)) == (size > MIB)
    assert list(folder.iterdir()) == []
    form.close()
    assert upload.file.closed


async def test_a_large_file_is_written_in_threads_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No write to a disk happens on the event loop's thread."""
    writers = set()
    real = tempfile.TemporaryFile

    def watched(**options):
        file = real(**options)

        class Watched:
            def __getattr__(self, name):
                writers.add(threading.get_ident())
                return getattr(file, name)

        return Watched()

    monkeypatch.setattr("vllm_mmout.serving.inputs.uploads.tempfile.TemporaryFile", watched)
    form = await form_of(multipart(("image", ("x.tif", LARGE))))
    assert writers
    assert threading.get_ident() not in writers
    form.close()


async def test_names_of_files_are_no_paths() -> None:
    """Folders, of either kind of system, are taken off what a client calls its file."""
    names = ["../../etc/passwd", "C:\\scenes\\a.tif", "/b.tif", "x" * 500, ".."]
    form = await form_of(multipart(*[("image", (name, b"x")) for name in names]))
    assert [upload.name for upload in form.files["image"]] == ["passwd", "a.tif", "b.tif", "x" * 200, ".."]
    form.close()


async def test_a_form_of_curl_is_read() -> None:
    """``application/x-www-form-urlencoded`` gives the same fields."""
    request = httpx.Request("POST", "http://server/", data={"prompt": "a b&c=Ü", "bands": ["2", "3"], "user": ""})
    form = await form_of(Sent(request.read(), dict(request.headers), "/"))
    assert form.fields == {"prompt": ["a b&c=Ü"], "bands": ["2", "3"], "user": [""]}
    assert form.files == {}


async def test_a_form_of_escapes_alone_takes_little_memory() -> None:
    """Some times what was sent, not some hundred bytes an escape."""
    body = b"image=data:," + b"%41" * (2 * MIB)
    request = incoming(body, {"Content-Type": "application/x-www-form-urlencoded"})
    tracemalloc.start()
    try:
        form = await read_form(request, OPTIONS)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert form.fields["image"][0].strip("A") == "data:,"
    assert peak < 64 * MIB


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", {}, 415),
        (b"{}", {"Content-Type": "application/json"}, 415),
        (b"x", {"Content-Type": "multipart/form-data"}, 400),
        (b"x", {"Content-Type": 'multipart/form-data; boundary=""'}, 400),
        (b"x", {"Content-Type": f"multipart/form-data; boundary={'x' * 300}"}, 400),
        (b"", {"Content-Type": FORM}, 400),
        (b"nothing of a form", {"Content-Type": FORM}, 400),
        (b"--xyz\r\n\r\nno name\r\n--xyz--\r\n", {"Content-Type": FORM}, 400),
        (b'--xyz\r\nContent-Disposition: attachment; name="a"\r\n\r\n1\r\n--xyz--', {"Content-Type": FORM}, 400),
        (b'--xyz\r\nContent-Disposition: form-data; name="a"\r\n\r\n\xff\r\n--xyz--', {"Content-Type": FORM}, 400),
        (b'--xyz\r\nContent-Disposition: form-data; name="\xff"\r\n\r\n1\r\n--xyz--', {"Content-Type": FORM}, 400),
        (b"--xyz\r\n" + b"A: 1\r\n" * 100, {"Content-Type": FORM}, 400),
        (b"--xyz\r\nA: " + b"1" * 10000, {"Content-Type": FORM}, 400),
        (b"", {"Content-Type": FORM, "Content-Encoding": "gzip"}, 415),
        (b"a=%ff", {"Content-Type": "application/x-www-form-urlencoded"}, 400),
        (b"\xff=1", {"Content-Type": "application/x-www-form-urlencoded"}, 400),
        (b"no field", {"Content-Type": "application/x-www-form-urlencoded"}, 400),
        (b"a=1&", {"Content-Type": "application/x-www-form-urlencoded"}, 400),
        (b"&".join([b"a=1"] * 1001), {"Content-Type": "application/x-www-form-urlencoded"}, 413),
    ],
)  # fmt: skip
async def test_what_is_no_form_is_refused(body, headers, status) -> None:
    """Malformed forms get 400, other content 415, too many fields 413."""
    assert (await refused(incoming(body, headers))).status == status


@pytest.mark.parametrize("end", [1, 40, 200, 2 * MIB, -3])
async def test_a_form_that_ends_early_is_refused(end) -> None:
    """A body that is cut off anywhere is incomplete, never a smaller form."""
    sent = multipart(("prompt", "water"), ("image", ("x.tif", LARGE)))
    cut = Sent(sent.body.rstrip()[:end], sent.headers, "/")
    headers = {name: value for name, value in cut.headers.items() if name.lower() != "content-length"}
    error = await refused(incoming(cut.body, headers))
    assert (error.status, "incomplete" in error.message) == (400, True)


async def test_a_client_that_goes_away_is_no_error_of_the_form() -> None:
    """The exception of starlette comes through, and what came of files is closed."""
    sent = multipart(("image", ("x.tif", LARGE)))
    with pytest.raises(ClientDisconnect):
        await form_of(Sent(sent.body[: 2 * MIB], sent.headers, "/"), ends="disconnect")


async def test_a_cancelled_request_leaves_nothing_open(folder) -> None:
    """The task that reads is cancelled while it waits for more."""
    sent = multipart(("image", ("x.tif", LARGE)))
    reading = asyncio.ensure_future(form_of(Sent(sent.body[: 2 * MIB], sent.headers, "/"), ends="never"))
    while not open_below(folder):  # noqa: ASYNC110 - nothing tells it
        await asyncio.sleep(0.01)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_a_body_that_stops_coming_is_refused() -> None:
    """408, which names the flag."""
    sent = multipart(("image", ("x.tif", LARGE)))
    error = await refused(
        incoming(sent.body[: 2 * MIB], sent.headers, ends="never"), ServingOptions(receive_timeout=0.05)
    )
    assert error.status == 408
    assert "--mmout-receive-timeout" in error.message


@pytest.fixture
def ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait for a piece seems to take ten seconds."""
    monkeypatch.setattr("vllm_mmout.serving.request.body.monotonic", count(0, 10).__next__)


@pytest.mark.usefixtures("ten_seconds")
async def test_a_body_of_single_bytes_is_refused() -> None:
    """A client that sends a byte now and then does not hold a place for ever."""
    request = incoming(b"", {"Content-Type": "application/json"})
    received = 0

    async def receive():
        nonlocal received
        received += 1
        await asyncio.sleep(0)
        return {"type": "http.request", "body": b" ", "more_body": received < 50}

    request._receive = receive
    assert (await refused(request, ServingOptions(receive_timeout=60), read_json)).status == 408
    assert received < 50


@pytest.mark.usefixtures("ten_seconds")
async def test_a_slow_body_is_read_as_long_as_it_comes() -> None:
    """The time holds for the next piece, not for the whole."""
    sent = multipart(("image", ("x.tif", LARGE)))
    request = incoming(sent.body, sent.headers, piece=1 << 19)  # 50 KiB a second
    inner = request.receive

    async def receive():
        await asyncio.sleep(0)
        return await inner()

    request._receive = receive
    form = await read_form(request, ServingOptions(receive_timeout=15))
    assert form.files["image"][0].size == len(LARGE)
    form.close()


@pytest.mark.usefixtures("ten_seconds")
async def test_a_body_that_never_stops_being_slow_is_refused() -> None:
    """Though each piece comes in time, one of 128 KiB every ten seconds holds no place for hours."""
    sent = multipart(("image", ("x.tif", LARGE)))
    request = incoming(sent.body, sent.headers, piece=1 << 17)
    inner, received = request.receive, 0

    async def receive():
        nonlocal received
        received += 1
        await asyncio.sleep(0)
        return await inner()

    request._receive = receive
    error = await refused(request, ServingOptions(receive_timeout=15))
    assert (error.status, "32 KiB a second" in error.message) == (408, True)
    assert "--mmout-receive-timeout" in error.message
    assert 2 <= received < 24


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("read", [read_form, read_json])
async def test_a_body_over_the_limit_is_refused(declared, read) -> None:
    """413 with the flag's name, for what is declared and for what comes."""
    kind = FORM if read is read_form else "application/json"
    body = b'--xyz\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\n' + b"1" * 2 * MIB
    headers = {"Content-Type": kind} | ({"Content-Length": str(len(body))} if declared else {})
    error = await refused(incoming(body, headers), ServingOptions(max_upload=MIB), read)
    assert error.status == 413
    assert "--mmout-max-upload" in error.message


async def test_a_body_of_the_limits_size_is_read() -> None:
    """The limit itself is allowed."""
    sent = multipart(("image", ("x.tif", b"1" * 1000)))
    (await form_of(sent, ServingOptions(max_upload=len(sent.body)))).close()
    error = await refused(incoming(sent.body, sent.headers), ServingOptions(max_upload=len(sent.body) - 1))
    assert error.status == 413


async def test_an_endless_body_ends() -> None:
    """What never ends is discarded for a moment and answered."""
    request = incoming(b"", {"Content-Type": FORM})
    received = 0

    async def receive():
        nonlocal received
        received += MIB
        return {"type": "http.request", "body": bytes(MIB), "more_body": True}

    request._receive = receive
    assert (await refused(request, ServingOptions(max_upload=8 * MIB))).status == 400  # no boundary in it
    assert received <= 70 * MIB


async def test_what_is_expected_to_continue_is_not_asked_for() -> None:
    """A client that waits for "100 Continue" sends nothing of a body that is too large."""
    request = incoming(b"", {"Content-Type": FORM, "Content-Length": str(MIB), "Expect": "100-continue"})

    async def receive():
        raise AssertionError("the body was asked for")

    request._receive = receive
    assert (await refused(request, ServingOptions(max_upload=1000))).status == 413


async def test_counts_and_text_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many files, so many fields, so much text as is taken, and no more."""
    for many, one in ((100, ("image", ("x", b"1"))), (1000, ("bands", "1"))):
        (await form_of(multipart(*[one] * many))).close()
        sent = multipart(*[one] * (many + 1))
        assert (await refused(incoming(sent.body, sent.headers))).status == 413
    monkeypatch.setattr("vllm_mmout.serving.request.body.MAX_TEXT", 1000)
    await form_of(multipart(("a", "x" * 500), ("b", "x" * 500)))
    sent = multipart(("a", "x" * 500), ("b", "x" * 501))
    error = await refused(incoming(sent.body, sent.headers))
    assert (error.status, error.param) == (413, "b")


@pytest.mark.parametrize("padding", [0, 100_000])
async def test_json_is_read(padding) -> None:
    """Small on the loop, large in a thread, to the same."""
    wanted = {"data": [1, 2.5, None, {"a": "Ü"}], "image": "x" * padding}
    body = json.dumps(wanted).encode()
    assert await read_json(incoming(body, {"Content-Type": "application/json; charset=utf-8"}), OPTIONS) == wanted
    assert await read_json(incoming(b" [1]", {"Content-Type": "application/geo+json"}), OPTIONS) == [1]


@pytest.mark.parametrize("padding", [0, 100_000])
@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"{}{}", b'{"a": NaN}', b'{"a": Infinity}', b'{"a": 1, "a": 2}', b'{"a": 1, "\\u0061": 1}', b"a=1",
        b'{"a":' * 100_000, b'{"a": ' + b"[" * 100_000, b"[" * 100_000, b'{"a": "\xff"}', b'{"a": "\\ud800"}',
        b'{"a": 1e999}', b"{'a': 1}",
    ],
)  # fmt: skip
async def test_what_is_no_json_is_refused(body, padding) -> None:
    """400, also for names given twice, numbers that are none, and what is nested without end."""
    request = incoming(b" " * padding + body, {"Content-Type": "application/json"})
    assert (await refused(request, read=read_json)).status == 400


@pytest.mark.parametrize("kind", ["", "text/plain", FORM])
async def test_json_is_asked_for_by_its_type(kind) -> None:
    """Other content types get 415."""
    assert (await refused(incoming(b"{}", {"Content-Type": kind}), read=read_json)).status == 415


@contextmanager
def served(options: ServingOptions):
    """A server that reads forms, in a thread."""

    async def edits(request):
        try:
            form = await read_form(request, options)
        except ApiError as error:
            return error_response(error)
        form.close()
        return JSONResponse({"created": 0, "data": []})

    async def full(request):
        await discard(request)
        return error_response(ApiError(429, "no place", headers={"Retry-After": "1"}))

    app = Starlette(routes=[Route("/v1/images/edits", edits, methods=["POST"]), Route("/full", full, methods=["POST"])])
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def test_openais_client_is_told_that_its_file_is_too_large() -> None:
    """The answer arrives, not a reset connection, though the client is still sending when it is made."""
    with served(ServingOptions(max_upload=MIB)) as url, httpx.Client() as plain:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        with client, pytest.raises(openai.APIStatusError) as caught:
            client.images.edit(image=("x.tif", LARGE * 8), prompt="")
        assert caught.value.status_code == 413
        assert "--mmout-max-upload" in caught.value.message

        def chunks():
            for _ in range(24):
                yield LARGE[:MIB]

        headers = {"Content-Type": FORM}
        assert plain.post(f"{url}/v1/images/edits", content=chunks(), headers=headers).status_code == 400
        assert plain.post(f"{url}/full", content=chunks()).status_code == 429
        assert plain.post(f"{url}/full").headers["Retry-After"] == "1"
