"""A real S3 server, one a session, and a bucket of its own for each test.

Import the fixtures ``s3`` and ``bucket`` into a module that uses them.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from unittest import mock

import pytest

SECRET = "pAssw0rd/of+the+bucket"  # noqa: S105 - of a server that takes any
_NUMBERS = itertools.count()


class Server:
    """The server, and what it is told to do wrong."""

    def __init__(self, address):
        self.address = address
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def asked(self):
        """What it was asked since the last time: method, path and query."""
        with self._opener.open(f"{self.address}/-/asked") as answer:
            return json.load(answer)

    def refuse(self, method=None, part=""):
        """Have it answer 403 to requests of a method with something in their path or query; none without a method."""
        refused = json.dumps(method and [method, part])
        asked = urllib.request.Request(f"{self.address}/-/refuse", refused.encode(), method="PUT")  # noqa: S310 - our own
        self._opener.open(asked).close()


@contextmanager
def started():
    """Start the server, yield its address, and end it."""
    if find_spec("moto") is None or find_spec("obstore") is None:
        pytest.skip("moto and obstore are not installed")
    command = [sys.executable, str(Path(__file__).with_name("s3_server.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process.stdout.readline().strip()
        process.stdin.close()


@pytest.fixture(scope="module")
def s3(s3_address):
    """The server, which this process and those that it starts find through the environment.

    The environment is restored after the module: with ``AWS_ACCESS_KEY_ID`` in it, rasterio makes a session of boto3
    each time that it opens a file, which takes some 30 ms.
    """
    environment = {
        "AWS_ACCESS_KEY_ID": "user",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": s3_address,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "NO_PROXY": "127.0.0.1",
    }
    with mock.patch.dict(os.environ, environment):
        yield Server(s3_address)


@pytest.fixture
def bucket(s3):
    """A new bucket's address, which ends with "/"."""
    name = f"bucket{next(_NUMBERS)}"
    _client().create_bucket(Bucket=name)
    yield f"s3://{name}/"
    s3.refuse()


@contextmanager
def redirecting(target):
    """A server that sends each request to the same path of another one; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(307)
            self.send_header("Location", target + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _client():
    return _client_of(os.environ["AWS_ENDPOINT_URL"])


@cache
def _client_of(endpoint):
    """A client of the server. To create a client takes longer than most of its requests."""
    import boto3

    return boto3.client("s3", endpoint_url=endpoint)


def put(address, data):
    """Store bytes, or the file at a path, in a bucket; returns the address."""
    name, _, key = address.removeprefix("s3://").partition("/")
    body = data if isinstance(data, bytes) else data.read_bytes()
    _client().put_object(Bucket=name, Key=key, Body=body)
    return address


def names(bucket, prefix=""):
    """The names in a bucket that begin with a prefix."""
    listed = _client().list_objects_v2(Bucket=bucket.removeprefix("s3://").rstrip("/"), Prefix=prefix)
    return [each["Key"] for each in listed.get("Contents", [])]


def held(bucket):
    """What a bucket holds, name -> bytes, and names of what is uploaded in parts and not there yet."""
    client = _client()
    name = bucket.removeprefix("s3://").rstrip("/")
    parts = [each["Key"] for each in client.list_multipart_uploads(Bucket=name).get("Uploads", [])]
    return {key: client.get_object(Bucket=name, Key=key)["Body"].read() for key in names(bucket)}, parts
