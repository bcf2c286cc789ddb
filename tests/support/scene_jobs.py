"""A server of jobs without an engine: gives a result it was told, and misbehaves where a test says how.

Import the fixture ``jobs`` into a module that uses it.
"""

from __future__ import annotations

import json
import re
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from http_server import answering, no_proxies

ID = "scene_" + "aZ09-_" * 7 + "x"
RESULT = bytes(range(256)) * 5000
RUNNING = {"status": "in_progress", "tiles": {"done": 1, "total": 4}, "progress": 25}


def error(message, **more):
    """The body of an error, as OpenAI has it."""
    return {"error": {"message": message, "type": "BadRequestError", "param": None, "code": 400, **more}}


@dataclass
class Asked:
    """One request."""

    method: str
    path: str
    """Without its query."""
    query: dict[str, list[str]]
    headers: dict[str, str]
    """By names in lower case."""
    body: bytes = b""
    sent: int = 0
    """Bytes of the answer's body."""


@dataclass
class Jobs:
    """What the server has, and what it was asked."""

    address: str = ""
    results: dict[str, bytes] = field(default_factory=lambda: {"segmentation": RESULT})
    output: dict[str, object] = field(default_factory=lambda: {"output_format": "png", "media_type": "image/png"})
    """What is said of each result beside its processor and its bytes."""
    etag: str | None = '"one"'
    steps: list[dict[str, object]] = field(default_factory=list)
    """How the job stands, one for each time that somebody looks; then it is completed."""
    faults: dict[str, list[object]] = field(default_factory=dict)
    """"METHOD name" -> functions of an `Answer`, each gives one answer instead of the right one."""
    asked: list[Asked] = field(default_factory=list)
    looked: threading.Event = field(default_factory=threading.Event)
    """Whether somebody looked at the job."""
    ranges: bool = True

    def of(self, request):
        """The requests such as "POST scenes", in their order."""
        return [asked for asked in self.asked if f"{asked.method} {_name(asked.path)}" == request]

    def job(self):
        """The job when somebody looks at it."""
        completed = {
            "status": "completed",
            "progress": 100,
            "tiles": {"done": 4, "total": 4},
            "outputs": self.outputs(),
        }
        return self.described(self.steps.pop(0) if self.steps else completed)

    def described(self, step):
        """The job as it stands in one step."""
        times = {"created_at": 1, "started_at": 2, "completed_at": None, "expires_at": None}
        usual = {
            "progress": 0,
            "tiles": None,
            "outputs": [],
            "error": None,
            "name": "scene.tif",
            "model": "water-index",
        }
        return {"id": ID, "object": "scene", **times, **usual, **step}

    def outputs(self):
        """What is said of the results."""
        usual = {"size": None, "classes": None, **self.output}
        return [{"processor": name, "bytes": len(data), **usual} for name, data in self.results.items()]

    def form(self):
        """Names, file names and contents of the form that came last, as the parser of Python's mails finds them."""
        (*_, asked) = self.of("POST scenes")
        head = f"Content-Type: {asked.headers['content-type']}\r\n\r\n".encode()
        parts = BytesParser().parsebytes(head + asked.body).get_payload()
        return [
            (part.get_param("name", header="content-disposition"), part.get_filename(), part.get_payload(decode=True))
            for part in parts
        ]


class Answer(BaseHTTPRequestHandler):
    """Gives one answer after the other."""

    protocol_version = "HTTP/1.1"
    server: _Server

    def handle_one(self):
        self.told = self.server.told
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.asked = Asked(self.command, parts.path, parse_qs(parts.query), headers)
        self.told.asked.append(self.asked)
        request = f"{self.command} {_name(parts.path)}"
        faults = self.told.faults.get(request, [])
        with suppress(ConnectionError):  # who asked has heard enough
            if faults:
                faults.pop(0)(self)
            else:
                self.right(request)

    do_GET = do_POST = do_DELETE = handle_one  # noqa: N815 - names of the standard library

    def right(self, request):
        """Give the right answer."""
        if request == "POST scenes":
            self.read()
            self.json(200, self.told.described({"status": "queued"}))
        elif request == "GET scenes":
            self.json(200, {"object": "list", "data": [], "has_more": False})
        elif request == "GET job":
            self.json(200, self.told.job())
            self.told.looked.set()
        elif request == "GET content":
            self.content()
        elif request == "DELETE job":
            self.json(200, {"id": ID, "object": "scene.deleted", "deleted": True})
        else:
            self.json(404, {"detail": "Not Found"})

    def read(self, count=None):
        """Read the body, or as much of it."""
        size = int(self.headers["Content-Length"]) if count is None else count
        self.asked.body = self.rfile.read(size)

    def content(self, upto=None, etag=None):
        """Give the result, or what is asked for of it, and no byte of the result behind ``upto``."""
        data = self.told.results[self.asked.query["processor"][0]]
        etag = etag or self.told.etag
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        wanted = found and self.told.ranges and self.headers.get("If-Range") in (None, etag)
        start = int(found[1]) if wanted else 0
        headers = {"Content-Length": len(data) - start, **({} if etag is None else {"ETag": etag})}
        if wanted:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self.give(206 if wanted else 200, data[start:upto], headers)
        self.close_connection = upto is not None

    def json(self, status, body, headers=None):
        """Give JSON."""
        self.give(status, json.dumps(body).encode(), headers)

    def give(self, status, body=b"", headers=None):
        """Give an answer."""
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **(headers or {})}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)
        self.asked.sent += len(body)

    def log_message(self, *_):
        """Say nothing."""


def _name(path):
    """What lies at a path: "scenes", "job", "content"."""
    below = path.partition("/v1/scenes")[2].strip("/").split("/")
    return "scenes" if below == [""] else below[1] if len(below) > 1 else "job"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, told):
        super().__init__(("127.0.0.1", 0), Answer)
        self.told = told

    def handle_error(self, request, client_address):
        """Say nothing of clients that go."""


@contextmanager
def running():
    """A server of jobs."""
    told = Jobs()
    with _Server(told) as server:
        told.address = f"http://127.0.0.1:{server.server_port}"
        with answering(server, "jobs-server"):
            yield told


@pytest.fixture(name="jobs")
def a_server_of_jobs():
    """A server that completes each job at once, and has not been asked."""
    with no_proxies(), running() as told:
        yield told
