"""How answers of a running server are judged by its own description, and what provokes some of them."""

from __future__ import annotations

import socket
import time
from datetime import timedelta
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import HealthCheck, Phase, settings
from schemathesis_apart import described

prometheus = pytest.importorskip("prometheus_client.parser")

CHECKS = [
    described.status_code_conformance,
    described.content_type_conformance,
    described.response_schema_conformance,
    described.response_headers_conformance,
]
KEY = {"Authorization": "Bearer secret"}
DRIVEN = settings(
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


def judge_error(response):
    """See that an answer is an error in OpenAI's form, with words and its own status."""
    (error,) = response.json().values()
    assert set(error) == {"message", "type", "param", "code"}, error
    assert error["message"], error
    assert error["code"] == response.status_code, error


def partly(url, path, kind="multipart/form-data; boundary=x"):
    """A connection on which half of a body was sent."""
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname, parts.port), timeout=30)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\nContent-Type: {kind}\r\n"
    connection.sendall(f"{head}Content-Length: 1000\r\n\r\n--x\r\n".encode())
    return connection


def answer_of(connection):
    """What comes on a connection, as a response."""
    from http.client import HTTPResponse

    response = HTTPResponse(connection)
    response.begin()
    request = httpx.Request("POST", "http://127.0.0.1")
    made = httpx.Response(response.status, headers=response.getheaders(), content=response.read(), request=request)
    made.elapsed = timedelta()
    return made


def idle(url):
    """Whether nothing is under way, at once or soon."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        families = prometheus.text_string_to_metric_families(httpx.get(f"{url}/metrics").text)
        values = [
            sample.value
            for family in families
            for sample in family.samples
            if sample.name in {"mmout:decodes_pending", "vllm:num_requests_running"}
        ]
        assert len(values) >= 2
        if not any(values):
            return True
        time.sleep(0.1)
    return False
