"""What tests ask of a running server beside its answers."""

from __future__ import annotations

import re
import tempfile
from http.client import HTTPConnection

import httpx
from files_open import open_below
from metrics_page import lines_of

_TEXT = rb'(?<="content":")[^"]*(?=")|(?<="text":")[^"]*(?=")'


def metric(server, name, **labels):
    """The sum of a metric's samples."""
    from prometheus_client.parser import text_string_to_metric_families

    text = httpx.get(f"{server.url}/metrics", timeout=60, trust_env=False).text
    return sum(
        sample.value
        for family in text_string_to_metric_families(lines_of(text, name))
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def open_files(server):
    """Temporary files that a server has open, those without a name too."""
    return set(open_below(tempfile.gettempdir(), process=server.pid))


def posted(server, path, **form):
    """A connection on which a form was sent, as `httpx` makes it, and nothing was received."""
    request = httpx.Request("POST", f"{server.url}{path}", **form)
    connection = HTTPConnection(request.url.host, request.url.port, timeout=60)
    connection.request("POST", path, request.read(), dict(request.headers))
    return connection


def stable(body):
    """A body without what differs from one answer of the same server to the next."""
    body = re.sub(rb'"(id|request_id)":\s*"[^"]*"', rb'"\1":""', body)
    body = re.sub(rb'"created":\s*\d+', b'"created":0', body)
    return joined(body) if body.startswith(b"data: ") else body


def joined(stream):
    """The text of a stream, and its events without it.

    How many tokens an event holds depends on how soon it is sent, and so does the number of events in the middle.
    """
    text = b"".join(re.findall(_TEXT, stream))
    events = re.sub(_TEXT, b"", stream).split(b"\n\n")
    return text, [event for event in events if b'"role"' in event or b'"finish_reason":null' not in event]
