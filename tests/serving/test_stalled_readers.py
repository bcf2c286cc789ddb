"""Clients that take nothing of their answer, or have gone: the connection ends, and nothing that it held stays."""

from __future__ import annotations

import asyncio
import logging
import socket
import tempfile
import time
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx
import psutil
import pytest
from sending import sending
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from watched_results import Watched, watched

pytest.importorskip("vllm", reason="the log is vLLM's")

from vllm_mmout.serving.image_routes import get_result
from vllm_mmout.serving.options import ServingOptions
from vllm_mmout.serving.response.events import EventsResponse, completed
from vllm_mmout.serving.response.responses import ClosingResponse, bare_response, json_response
from vllm_mmout.serving.response.result_files import Encoded
from vllm_mmout.serving.response.store import ResultStore

pytestmark = pytest.mark.engine

LARGE = 1 << 30
"""Bytes of a result: more than any buffer between the two."""
LIMIT = 0.3
"""Seconds that a server waits for its client."""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, with nothing else in it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """What the server and we log, from info on."""
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    for name in ("vllm", "uvicorn"):
        caplog.set_level(logging.INFO, logger=name)
    return caplog


async def _events(entry):
    yield completed("image_edit", entry, used={})
    await asyncio.sleep(1000)


def held(entry):
    """An answer that holds a place until it is sent."""
    stack = AsyncExitStack()
    stack.callback(entry.close)
    return ClosingResponse(Response(b"small", headers={"X-Large": "x" * 200}), stack.aclose)


ANSWERS = {
    "json": lambda entry: json_response([entry], tiles=1),
    "bare": bare_response,
    "events": lambda entry: EventsResponse(_events(entry)),
}


class App:
    """Answers with what ``make`` makes of a large result."""

    def __init__(self, make, limit: float = LIMIT) -> None:
        self.entries: list[Watched] = []
        self.make = make
        self.asgi = Starlette(routes=[Route("/", self.answer), Route("/full", self.full)])
        self.asgi.state.mmout = SimpleNamespace(options=ServingOptions(send_timeout=limit))

    async def answer(self, request):
        self.entries.append(watched(LARGE))
        return self.make(self.entries[-1])

    async def full(self, request):
        """More at once than is ever written to a connection that nobody reads."""
        return Response(bytes(64 << 20))


@contextmanager
def asking(url: str, *paths: str, buffer: int = 4096):
    """A client that asks, one request behind the other, and takes nothing."""
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        client.connect((host, int(port)))
        client.sendall(b"".join(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode() for path in paths or ("/",)))
        yield client


def until(holds) -> None:
    """Wait for something that must come."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def at_server(client: socket.socket) -> list[object]:
    """The server's end of a connection, as long as it keeps one."""
    ours, theirs = client.getsockname(), client.getpeername()
    found = psutil.Process().net_connections("tcp4")
    return [one for one in found if tuple(one.laddr) == theirs and one.raddr and tuple(one.raddr) == ours]


def check_ended(app: App, client: socket.socket, log: pytest.LogCaptureFixture) -> None:
    """Nothing is held, the connection is gone, and the log has one line of it that is no error."""
    until(lambda: app.entries and app.entries[0].closed.is_set())
    until(lambda: not at_server(client))
    told = [record for record in log.records if "--mmout-send-timeout" in record.getMessage()]
    assert [record.levelname for record in told] == ["INFO"]
    assert not [record for record in log.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_client_that_takes_nothing(kind, log, temporary):
    """The result is let go, and the connection closed, though the client keeps its end open."""
    app = App(ANSWERS[kind])
    with sending(app.asgi) as url, asking(url) as client:
        check_ended(app, client, log)
        assert not list(temporary.iterdir())
        assert httpx.get(f"{url}/nothing").status_code == 404


def test_a_client_that_takes_nothing_of_a_stored_result(log, temporary):
    """The file that was open is closed; the result stays for who asks again."""
    store = ResultStore.temporary(3600, 2 * LARGE)
    name = store.keep(watched(LARGE))

    async def answer(request):
        return await get_result(request, store)

    app = Starlette(routes=[Route("/{name}", answer)])
    app.state.mmout = SimpleNamespace(options=ServingOptions(send_timeout=LIMIT))

    def is_open():
        return any(name in one.path for one in psutil.Process().open_files())

    with sending(app) as url, asking(url, f"/{name}") as client:
        until(is_open)
        until(lambda: not is_open())
        until(lambda: not at_server(client))
    assert store.has(name)
    store.close()
    assert "--mmout-send-timeout" in log.text


def test_a_small_answer_behind_one_that_is_not_taken(log):
    """A place that is held until an answer was sent is free, though nothing of it could be."""
    app = App(held)
    with sending(app.asgi) as url, asking(url, "/full", "/") as client:
        check_ended(app, client, log)


def test_a_client_that_takes_its_answer_slowly(log):
    """Each piece has the whole time; the answer takes longer than that, and is whole."""
    size, limit = 48 << 20, 1

    async def answer(request):
        return bare_response(Encoded(bytes(size), "tiff"))

    app = Starlette(routes=[Route("/", answer)])
    app.state.mmout = SimpleNamespace(options=ServingOptions(send_timeout=limit))
    started = time.monotonic()
    with sending(app) as url, asking(url, buffer=1 << 16) as client:
        got = b""
        while not got.endswith(b"\r\n\r\n"):
            got += client.recv(1)
        taken = pauses = 0
        while taken < size:
            taken += len(client.recv(min(size - taken, 1 << 16)))
            if time.monotonic() - started < 1.5 * limit and taken > pauses << 17:
                assert taken < size // 2, "the answer ended within the limit"
                pauses += 1
                time.sleep(0.012)
    assert taken == size
    assert time.monotonic() - started > 1.5 * limit
    assert "--mmout-send-timeout" not in log.text


class Connection:
    """What uvicorn has below an answer; its client has gone, and ``send`` was not told."""

    def __init__(self, *, closed: bool) -> None:
        self.transport = self
        self.closed = closed
        self.aborted = False

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.aborted = True

    async def receive(self):
        await asyncio.get_running_loop().create_future()

    async def send(self, message):
        if message.get("body"):
            raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_connection_that_was_closed_below(kind, log):
    """What is written to it fails, which is no failure of the server's; on an open one it would be."""
    app = {"type": "http", "method": "GET", "asgi": {"spec_version": "2.3"}}
    entry, connection = watched(LARGE), Connection(closed=True)
    asyncio.run(ANSWERS[kind](entry)(app, connection.receive, connection.send))
    assert entry.closed.is_set()
    assert connection.aborted
    assert [record.levelname for record in log.records] == ["INFO"]
    entry, connection = watched(LARGE), Connection(closed=False)
    with pytest.raises(RuntimeError, match="the handler is closed"):
        asyncio.run(ANSWERS[kind](entry)(app, connection.receive, connection.send))
    assert entry.closed.is_set()
