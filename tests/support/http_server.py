"""A server of files over http that counts what it gives, and misbehaves where a test says how.

Import the fixture ``server`` into a module that uses it.
"""

from __future__ import annotations

import gc
import os
import re
import socket
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest import mock
from urllib.parse import urlsplit

import pytest
from files_open import open_targets

PROXIES = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"]


@dataclass
class Asked:
    """One request."""

    path: str
    """With its query."""
    part: tuple[int, int] | None
    """First byte asked for, and the one after the last."""
    headers: dict[str, str]
    """By names in lower case."""
    sent: int = 0
    """Bytes of the answer's body."""


@dataclass
class Server:
    """What is served, by path, and what was asked for."""

    address: str = ""
    served: dict[str, object] = field(default_factory=dict)
    """Functions of an `Answer`, each gives one answer."""
    asked: list[Asked] = field(default_factory=list)
    ending: threading.Event = field(default_factory=threading.Event)
    """What waits must not wait longer than this."""

    def serve(self, path, data, **options):
        """Serve bytes, or the file at a path; returns its address."""
        return self.answer(path, lambda answer: answer.file(data, **options))

    def answer(self, path, function):
        """Answer requests for a path with what a function of the `Answer` does; returns its address."""
        self.served[path] = function
        return self.address + path

    def quiet(self):
        """Wait until the server has accepted all connections and closed them, and their threads have ended."""
        to = urlsplit(self.address)
        # Connections are accepted in their order, so those before this one have their threads once it is closed.
        with socket.create_connection((to.hostname, to.port), 120) as last, suppress(ConnectionError):
            last.shutdown(socket.SHUT_WR)
            last.recv(1)
        self.until(
            lambda: not any("process_request_thread" in thread.name for thread in threading.enumerate()),
            "a connection is left open",
        )

    def wait_for(self, path, count):
        """Wait until so many requests for a path were read: on a busy machine, after their client has given up."""
        self.until(lambda: len(self.of(path)) >= count, f"{count} requests for {path}")

    def until(self, condition, what):
        """Wait until a condition is true."""
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline, what
            time.sleep(0.01)

    def unused_port(self):
        """A port at which nobody listens."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return free.getsockname()[1]

    def of(self, path):
        """The requests for a path, in their order."""
        return [asked for asked in self.asked if urlsplit(asked.path).path == path]

    def sent(self, path):
        """Bytes that were given of a path."""
        return sum(asked.sent for asked in self.of(path))


class Answer(BaseHTTPRequestHandler):
    """Gives one answer after the other."""

    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self):
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        self.part = (int(found[1]), int(found[2]) + 1) if found else None
        self.asked = Asked(self.path, self.part, {name.lower(): value for name, value in self.headers.items()})
        self.told = self.server.told
        self.told.asked.append(self.asked)
        self.number = len(self.told.of(urlsplit(self.path).path))
        """Which request for this path it is, from 1."""
        function = self.told.served.get(urlsplit(self.path).path)
        with suppress(ConnectionError):  # who asked has heard enough
            if function is None:
                self.give(404, b"not here")
            else:
                function(self)

    def file(self, data, *, ranges=True, headers=None, delay=0.0, claimed=None):
        """Give what is asked for of some bytes, or of the file at a path."""
        self.told.ending.wait(delay)
        size = data.stat().st_size if isinstance(data, Path) else len(data)
        start, stop = self.part if self.part and ranges else (0, size)
        headers = dict(headers or {})
        if start >= size and self.part and ranges:
            self.give(416, b"", {"Content-Range": f"bytes */{size}"})
            return
        stop = min(stop, size)
        if self.part and ranges:
            headers.setdefault("Content-Range", f"bytes {start}-{stop - 1}/{claimed or size}")
        self.give(206 if self.part and ranges else 200, _bytes(data, start, stop), headers)

    def give(self, status, body=b"", headers=None, *, length=None, sent=None):
        """Give an answer, of which no more than ``sent`` bytes are sent; then the connection is closed."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body) if length is None else length), **(headers or {})}.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        self.write(body if sent is None else body[:sent])
        if sent is not None or length is not None:
            self.close_connection = True

    def write(self, data):
        """Send bytes of a body, which count before somebody has them."""
        self.asked.sent += len(data)
        try:
            self.wfile.write(data)
        except ConnectionError:
            self.asked.sent -= len(data)
            raise

    def redirect(self, location, status=302):
        """Say that it is elsewhere."""
        self.give(status, b"elsewhere", {"Location": location})

    def log_message(self, *_):
        """Say nothing."""


def _bytes(data, start, stop):
    if not isinstance(data, Path):
        return data[start:stop]
    with data.open("rb") as file:
        file.seek(start)
        return file.read(stop - start)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 32

    def __init__(self, told):
        super().__init__(("127.0.0.1", 0), Answer)
        self.told = told

    def handle_error(self, request, client_address):
        """Say nothing of clients that go."""


@contextmanager
def answering(server, name):
    """Have a server answer, in a thread with this name."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name=name)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()


@contextmanager
def running(context=None):
    """A server, with TLS where there is a context for it."""
    told = Server()
    with _Server(told) as server:
        scheme = "http"
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
            scheme = "https"
        told.address = f"{scheme}://127.0.0.1:{server.server_port}"
        with answering(server, "http-server"):
            try:
                yield told
            finally:
                told.ending.set()


def open_sockets():
    """Sockets of this process, with which it could speak to a server.

    Those to its own fork server, which a thread of the test run opens at any time, are Unix sockets and do not count.
    """
    gc.collect()
    unix = _unix_sockets()
    return {target for target in open_targets() if target.startswith("socket:")} - unix - _unix_sockets()


def _unix_sockets():
    lines = Path("/proc/self/net/unix").read_text().splitlines()[1:]
    return {f"socket:[{line.split()[6]}]" for line in lines}


@contextmanager
def no_proxies(**variables):
    """Leave the proxies of the environment out, but for those given."""
    with mock.patch.dict("os.environ", variables):
        for name in PROXIES:
            for spelt in (name, name.lower()):
                if spelt not in variables:
                    os.environ.pop(spelt, None)
        yield


@pytest.fixture(name="running_server", scope="module")
def a_running_server():
    """One server for the tests of a module."""
    with running() as told:
        yield told


@pytest.fixture(name="server")
def a_server(running_server):
    """A server that serves nothing yet, and has not been asked."""
    running_server.served.clear()
    running_server.asked.clear()
    with no_proxies():
        yield running_server
