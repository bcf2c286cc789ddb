"""A real S3 server, moto's, one a session, and a bucket of its own for each test.

Import the fixtures ``s3`` and ``bucket`` into a module that uses them.
"""

from __future__ import annotations

import itertools
import logging
import os
from unittest import mock

import pytest

SECRET = "pAssw0rd/of+the+bucket"  # noqa: S105 - of a server that takes any
_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def s3():
    """The environment through which processes find the server, set in this one."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    environment = {
        "AWS_ACCESS_KEY_ID": "user",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": address,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "NO_PROXY": "127.0.0.1",
    }
    with mock.patch.dict(os.environ, environment):
        yield address
    server.stop()


@pytest.fixture
def bucket(s3):
    """A new bucket's address, which ends with "/"."""
    import boto3

    name = f"bucket{next(_NUMBERS)}"
    boto3.client("s3", endpoint_url=s3).create_bucket(Bucket=name)
    return f"s3://{name}/"


def put(address, data):
    """Store bytes, or the file at a path, in a bucket; returns the address."""
    import boto3

    name, _, key = address.removeprefix("s3://").partition("/")
    body = data if isinstance(data, bytes) else data.read_bytes()
    boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"]).put_object(Bucket=name, Key=key, Body=body)
    return address


def held(bucket):
    """What a bucket holds, name -> bytes, and names of what is uploaded in parts and not there yet."""
    import boto3

    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    name = bucket.removeprefix("s3://").rstrip("/")
    keys = [each["Key"] for each in client.list_objects_v2(Bucket=name).get("Contents", [])]
    parts = [each["Key"] for each in client.list_multipart_uploads(Bucket=name).get("Uploads", [])]
    return {key: client.get_object(Bucket=name, Key=key)["Body"].read() for key in keys}, parts
