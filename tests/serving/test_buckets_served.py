"""Inputs and results of a server in buckets: those below the prefixes that it was given, and no others."""

from __future__ import annotations

import os

import httpx
import numpy as np
import pytest
from buckets import bucket, held, put, redirecting, s3  # noqa: F401 - fixtures
from scenes_for_tests import classes, pixels, write
from serving import served

from vllm_mmout.errors import BucketError, InputError, OptionError
from vllm_mmout.geo import read_raster
from vllm_mmout.geo.raster.remote.buckets import stores
from vllm_mmout.serving.errors import api_error
from vllm_mmout.serving.inputs.prefixes import Prefixes
from vllm_mmout.serving.inputs.sources import Sources
from vllm_mmout.serving.options import ServingOptions

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]
READS = ["s3://served/in/", "s3://served/more"]
BELOW = ["s3://served/in/a.tif", "S3://served/in/x/a b.tif", "s3://served/more/a.tif"]
BESIDE = [
    *("s3://served/internal/a.tif", "s3://served/in", "s3://served/in/", "s3://served/moreover/a.tif"),
    *("s3://Served/in/a.tif", "s3://served2/in/a.tif", "gs://served/in/a.tif", "s3://served/a.tif", "s3://in/a.tif"),
    *(
        "s3://served/in/%2e%2e/a.tif",
        "s3://served/in/%2E%2E%2Fa.tif",
        "s3://served/in%2f../a.tif",
        "s3://served/IN/a.tif",
    ),
    *("s3://served/in/..\\a.tif", "s3://served/in%2Fa.tif"),
]
REFUSED = [
    *("s3://served/in/../internal/a.tif", "s3://served/in/./a.tif", "s3://served/in//a.tif", "s3://served//in/a.tif"),
    *(
        "s3://served/in/a.tif?versionId=1",
        "s3://served/in/a.tif#x",
        "s3://u:p@served/in/a.tif",
        "s3://served/in/a\n.tif",
    ),
    *("s3://served:80/in/a.tif", "s3:///served/in/a.tif", "s3://served\\@other/in/a.tif", "s3://s\u0435rved/in/a.tif"),
]


def test_what_lies_below_a_prefix() -> None:
    """Whole parts of the path count, and the bucket as it is spelled; what could lead out of it is refused."""
    reads = Prefixes.of(READS, "--mmout-read-from")
    assert all(map(reads.allows, BELOW))
    assert not any(map(reads.allows, BESIDE))
    for address in REFUSED:
        with pytest.raises(InputError):
            reads.allows(address)
    assert not any(map(Prefixes.of((), "--mmout-read-from").allows, BELOW + BESIDE + REFUSED))


@pytest.mark.parametrize(
    "given", ["/srv/scenes", "https://host/in/", "s3://", "s3://bucket/../in/", "s3://bucket/in/?x"]
)
def test_a_prefix_that_is_none(given) -> None:
    """The server says so before its engine is started."""
    with pytest.raises(OptionError, match="--mmout-write-to"):
        ServingOptions(write_to=(given,))


def test_a_bucket_whose_server_redirects_is_not_read(bucket, s3, monkeypatch) -> None:  # noqa: F811
    """The client gets an error, and the target of the redirect gets no request."""
    address = put(bucket + "a.tif", b"x")
    sources = Sources(ServingOptions(read_from=(bucket,)), local_path=None, domains=None)
    with sources.open_text(address) as file:
        assert file.read() == b"x"
    with redirecting(s3.address) as elsewhere:
        monkeypatch.setenv("AWS_ENDPOINT_URL", elsewhere)
        stores._store.cache_clear()
        s3.asked()
        try:
            with pytest.raises(
                InputError, match=r"a\.tif: the bucket's server redirects to .*, and redirects of buckets are"
            ):
                sources.open_text(address)
        finally:
            stores._store.cache_clear()
        assert s3.asked() == []


@pytest.mark.parametrize(("status", "answer"), [(401, 502), (403, 403), (404, 404), (405, 502), (503, 502), (0, 502)])
def test_what_a_bucket_refuses_has_a_status_and_a_reason(status, answer) -> None:
    """A client that chose the path learns why no result is there. A failing bucket server is a 502."""
    cause = OSError("the server answered")
    error = BucketError("s3://served/out/a.tif: the server answered", status=status)
    error.__cause__ = cause
    found = api_error(error)
    assert (found.status, found.message, found.param) == (answer, str(error), "path")


@pytest.fixture(name="server", scope="module")
def a_server(s3, water_index):  # noqa: F811
    """A server that reads and writes below two folders of a bucket."""
    import boto3

    boto3.client("s3", endpoint_url=s3.address).create_bucket(Bucket="served")
    flags = [word for address in READS for word in ("--mmout-read-from", address)]
    flags += ["--mmout-write-to", "s3://served/out/"]
    names = [name for name in os.environ if name.startswith("AWS_")]
    with served(water_index, *flags, environment={name: os.environ[name] for name in names}) as server:
        yield server


@pytest.fixture(name="scene", scope="module")
def a_scene(tmp_path_factory):
    """A scene on disk."""
    path = tmp_path_factory.mktemp("scene") / "a.tif"
    write(path, pixels(3))
    return path


def asked(server, route="/v1/images/edits", **fields):
    """The answer to a request in JSON."""
    return httpx.post(f"{server.url}{route}", json=fields, timeout=600)


def test_from_one_folder_of_a_bucket_into_another(server, scene) -> None:
    """The answer names the address, where the result is whole."""
    address = put("s3://served/in/a.tif", scene)
    path = "s3://served/out/x/mask.tif"
    answer = asked(server, image=address, path=path, tile=32)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["data"] == [{"url": path}]
    assert (body["output_format"], body["size"], body["usage"]["input_tokens"]) == ("tiff", "90x75", 9)
    np.testing.assert_array_equal(read_raster(path).array, classes(pixels(3)))
    assert asked(server, image=address, path="s3://served/out/whole.png").json()["data"][0]["url"].endswith("whole.png")
    files = set(held("s3://served/")[0])
    assert {"out/x/mask.tif", "out/x/mask.tif.aux.xml", "out/whole.png"} <= files


WRONG = [
    ({"image": "s3://served/internal/a.tif"}, "image", "as it lies below no address of --mmout-read-from"),
    ({"image": "s3://served/in/../internal/a.tif"}, "image", 'or "." or ".."'),
    ({"image": "s3://served/in/missing.tif"}, "image", "there is no such object"),
    ({"path": "/srv/mask.tif"}, "path", "where the server writes"),
    ({"path": "s3://served/in/mask.tif"}, "path", "--mmout-write-to"),
    ({"path": "s3://served/outer/mask.tif"}, "path", "--mmout-write-to"),
    ({"path": "s3://served/out/"}, "path", "--mmout-write-to"),
    ({"path": "s3://served/out/../in/mask.tif"}, "path", 'or "." or ".."'),
    ({"path": "s3://served/out/mask.xyz"}, "path", "suffix '.xyz' is unknown"),
    ({"path": "s3://served/out/mask.tif", "stream": True}, "stream", "leave stream out"),
    ({"path": "s3://served/out/mask.tif", "response_format": "url"}, "response_format", "leave response_format out"),
]


@pytest.mark.parametrize(("fields", "param", "words"), WRONG)
def test_what_is_refused(server, scene, fields, param, words) -> None:
    """400, which names the field; nothing is written."""
    put("s3://served/internal/a.tif", scene)
    before = set(held("s3://served/")[0])
    answer = asked(server, **{"image": put("s3://served/in/a.tif", scene), **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert words in answer.json()["error"]["message"]
    assert set(held("s3://served/")[0]) == before | {"in/a.tif"}


def test_a_write_that_the_bucket_refuses_is_no_internal_error(server, scene, s3) -> None:  # noqa: F811
    """The answer has the address, what the bucket said, and what to do."""
    address = put("s3://served/in/a.tif", scene)
    s3.refuse("PUT", "out/refused")
    answer = asked(server, image=address, path="s3://served/out/refused.tif", tile=32)
    s3.refuse()
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (403, "PermissionDeniedError", "path")
    assert error["message"].startswith(
        "s3://served/out/refused.tif: the server answered 403; ask for the right to write"
    )


def test_jobs_read_buckets_too(server, scene) -> None:
    """A job keeps the address; where a result is written is no field of one."""
    address = put("s3://served/in/a.tif", scene)
    answer = asked(server, "/v1/scenes", image=address, tile=32)
    assert (answer.status_code, answer.json()["name"]) == (200, "a.tif"), answer.text
    for image, path in (("s3://served/internal/a.tif", {}), (address, {"path": "s3://served/out/mask.tif"})):
        assert asked(server, "/v1/scenes", image=image, **path).status_code == 400
