"""Parts of results, as RFC 9110 has them in section 14, compared with starlette's answers for a file."""

from __future__ import annotations

import os
import re
import time
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from files_open import open_targets
from hypothesis import given
from hypothesis import strategies as st
from sending import sending
from starlette.applications import Starlette
from starlette.responses import FileResponse
from starlette.routing import Route

from vllm_mmout.serving.errors import error_response
from vllm_mmout.serving.response.ranges import asked_part, ranged_response
from vllm_mmout.serving.response.result_files import Encoded

pytestmark = [pytest.mark.engine]  # its errors know vLLM's
BYTES = bytes(range(256)) * 39 + bytes(16)
"""10,000, as in the examples of the RFC."""
ETAG = "scene_1-segmentation-result"
EXAMPLES = {
    "bytes=0-499": slice(0, 500),
    "bytes=500-999": slice(500, 1000),
    "bytes=-500": slice(9500, 10000),
    "bytes=9500-": slice(9500, 10000),
    "bytes=0-0": slice(0, 1),
    "bytes=-1": slice(9999, 10000),
    "bytes=0-": slice(0, 10000),
    "bytes=500-20000": slice(500, 10000),
    "bytes=-20000": slice(0, 10000),
    "Bytes=1-2": slice(1, 3),
    "bytes= 1-2 ": slice(1, 3),
}
"""14.1.2: what is asked for, and what that is of 10,000 bytes."""
NOTHING = ["bytes=10000-", "bytes=10000-10001", "bytes=999999999999999-", "bytes=-0"]
"""What is right and not there."""
IGNORED = [
    None,
    "",
    "bytes",
    "bytes=",
    "bytes=-",
    "bytes=--1",
    "bytes=1",
    "bytes=1-2-3",
    "bytes=5-4",
    "bytes=a-b",
    "bytes=+1-2",
    "bytes=1.0-2",
    "bytes=0-0,-1",
    "bytes=500-600,601-999",
    "bytes=1-2;",
    "octets=0-5",
    "seconds=1-2",
    "bytes:0-5",
    "0-5",
    "bytes=\u0661-\u0662",
    f"bytes={'9' * 5000}-",
    f"bytes=0-{'9' * 5000}",
]
"""What is none, malformed, of another unit, or of several parts, which a server may answer with the whole."""


@pytest.mark.parametrize(("header", "part"), EXAMPLES.items())
def test_the_examples_of_the_rfc(header, part):
    """Each is the stretch that the RFC says."""
    assert asked_part(header, 10_000) == part


@pytest.mark.parametrize("header", NOTHING)
def test_a_part_that_is_not_there(header):
    """It is empty, which is no mistake of form."""
    part = asked_part(header, 10_000)
    assert part is not None
    assert part.start >= part.stop


@pytest.mark.parametrize("header", IGNORED)
def test_what_asks_for_the_whole(header):
    """Other headers are as good as none."""
    assert asked_part(header, 10_000) is None


def test_an_empty_result_has_no_parts():
    """Every part of nothing is empty."""
    for header in ("bytes=0-", "bytes=0-0", "bytes=-1"):
        part = asked_part(header, 0)
        assert part.start >= part.stop


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """Asks for a result at /ours, and for the same bytes at /theirs as starlette gives a file."""
    path = tmp_path_factory.mktemp("ranges") / "result.tif"
    path.write_bytes(BYTES)

    def ours(request):
        try:
            entry = Encoded(os.fdopen(os.open(path, os.O_RDONLY), "rb", buffering=0), "tiff")
            return ranged_response(request, entry, ETAG, {"X-More": "1"}, "scene")
        except Exception as error:  # noqa: BLE001 - as the routes do it
            return error_response(error)

    app = Starlette(
        routes=[
            Route("/ours", ours, methods=["GET", "HEAD"]),
            Route("/theirs", lambda _: FileResponse(path), methods=["GET", "HEAD"]),
        ]
    )
    with sending(app) as url, closing(httpx.Client(base_url=url, timeout=60, trust_env=False)) as made:
        yield made


NUMBERS = st.integers(0, 20_000) | st.sampled_from([0, 1, 9_998, 9_999, 10_000, 10_001, 10**17])


@given(first=st.none() | NUMBERS, last=st.none() | NUMBERS)
def test_the_answer_is_that_of_starlette(client, first, last):
    """Status, bytes and headers of any one part are those of a file that starlette sends."""
    shown = ["" if number is None else str(number) for number in (first, last)]
    headers = {"Range": f"bytes={'-'.join(shown)}"}
    ours = client.get("/ours", headers=headers)
    if shown == ["", ""] or (None not in (first, last) and first > last):  # malformed: starlette says 400 or 416
        assert (ours.status_code, ours.content) == (200, BYTES)
        assert "content-range" not in ours.headers
        return
    theirs = client.get("/theirs", headers=headers)
    assert ours.status_code == theirs.status_code
    assert ours.headers.get("content-range") == theirs.headers.get("content-range")
    if ours.status_code == 416:
        assert ours.json()["error"]["code"] == 416
        assert "10000 bytes" in ours.json()["error"]["message"]
    else:
        assert ours.content == theirs.content
        assert ours.headers["content-length"] == theirs.headers["content-length"] == str(len(ours.content))
        assert ours.headers["accept-ranges"] == theirs.headers["accept-ranges"] == "bytes"


def test_the_whole(client):
    """An answer without Range says that parts can be had, and under which tag."""
    answer = client.get("/ours")
    assert (answer.status_code, answer.content) == (200, BYTES)
    assert answer.headers["etag"] == f'"{ETAG}"'
    assert answer.headers["x-more"] == "1"
    assert answer.headers["content-disposition"] == 'inline; filename="scene.tif"'
    assert answer.headers["content-type"] == "image/tiff"


@pytest.mark.parametrize(
    ("condition", "status"),
    [
        (f'"{ETAG}"', 206),
        (f'W/"{ETAG}"', 200),  # 13.1.5: compared strongly
        (ETAG, 200),
        (f'"{ETAG}x"', 200),
        (f'"{ETAG.upper()}"', 200),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 200),  # there is no Last-Modified that could be it
        ("", 200),
    ],
)
def test_a_part_of_what_it_was_before(client, condition, status):
    """With If-Range the part is sent if the tag is the same, else the whole, even where the part is not there."""
    answer = client.get("/ours", headers={"Range": "bytes=10-19", "If-Range": condition})
    assert (answer.status_code, answer.content) == (status, BYTES[10:20] if status == 206 else BYTES)
    answer = client.get("/ours", headers={"Range": "bytes=10000-", "If-Range": condition})
    assert answer.status_code == (416 if status == 206 else 200)
    assert answer.headers.get("content-range") == ("bytes */10000" if status == 206 else None)


@pytest.mark.parametrize("header", [None, "bytes=10-19", "bytes=10000-"])
def test_headers_alone(client, header):
    """HEAD says what a GET of the whole would say, as Range is of GET alone (14.2), and has no body."""
    answer = client.head("/ours", headers={} if header is None else {"Range": header})
    whole = client.get("/ours")
    assert (answer.status_code, answer.content) == (200, b"")
    names = set(whole.headers) - {"date"}
    assert {name: answer.headers.get(name) for name in names} == {name: whole.headers[name] for name in names}


@given(st.lists(st.integers(1, 4000), min_size=1, max_size=20))
def test_pieces_are_the_whole(client, sizes):
    """What is fetched piece by piece is put together as it was."""
    data = b""
    for size in [*sizes, 20_000]:
        headers = {"Range": f"bytes={len(data)}-{len(data) + size - 1}", "If-Range": f'"{ETAG}"'}
        answer = client.get("/ours", headers=headers)
        if len(data) == len(BYTES):
            assert answer.status_code == 416
            break
        assert re.fullmatch(rf"bytes {len(data)}-\d+/10000", answer.headers["content-range"])
        data += answer.content
    assert data == BYTES


def test_nothing_stays_open(client):
    """Each answer closes its result, the refused ones too."""
    for headers in ({}, {"Range": "bytes=1-2"}, {"Range": "bytes=10000-"}):
        client.get("/ours", headers=headers)
        client.head("/ours", headers=headers)
    deadline = time.monotonic() + 120
    while opened():  # a result is closed behind the last byte, which the client has then
        assert time.monotonic() < deadline, "a result is left open"
        time.sleep(0.01)


def opened():
    """The results that this process has open."""
    return [target for target in open_targets() if Path(target).name == "result.tif"]


@given(start=st.integers(0, 30), count=st.integers(0, 30), at=st.integers(0, 40), read=st.integers(0, 40))
def test_a_section_is_a_slice(start, count, at, read):
    """No read of it gives bytes that lie outside."""
    whole = BYTES[:30]
    count = min(count, 30 - start)
    section = Encoded(whole, "tiff")
    section.narrow(slice(start, start + count))
    assert section.nbytes == count
    assert section.read(at, read) == whole[start : start + count][at : at + read]
