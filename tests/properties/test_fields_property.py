"""Properties of what clients send: options come back, and nothing but a request or an error comes of anything."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sent_requests import Sent, incoming, sent_by
from starlette.requests import ClientDisconnect

from vllm_mmout.params import OutputParams
from vllm_mmout.serving.errors import ApiError, error_response
from vllm_mmout.serving.inputs.uploads import ReceivedForm, Upload
from vllm_mmout.serving.options import ServingOptions
from vllm_mmout.serving.request.body import read_form
from vllm_mmout.serving.request.fields import (
    FIELDS,
    VARIATIONS,
    ImageRequest,
    edit_request,
    generation_request,
)
from vllm_mmout.serving.request.json_body import read_json
from vllm_mmout.testing.strategies import output_params

pytestmark = pytest.mark.engine


OPTIONS = ServingOptions(max_upload=1 << 20)
NUMBERS = st.floats(-1e6, 1e6, width=32).filter(bool)
BOXES = st.tuples(st.floats(-180, 0), st.floats(-90, 0), st.floats(0.5, 180), st.floats(0.5, 90))
WINDOWS = st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(1, 9999), st.integers(1, 9999))


@st.composite
def all_params(draw: st.DrawFn) -> OutputParams:
    """Options of every kind that a client may set."""
    some = draw(output_params())
    placed = draw(st.sampled_from(["", "window", "bbox"]))
    more = {
        "processor": draw(st.none() | st.just("a") | st.just(("a",)) | st.just(("a", "b b"))),
        "output": draw(st.none() | st.sampled_from(["classes", "true", "1"])),
        "scale": draw(st.none() | NUMBERS | st.lists(NUMBERS, min_size=1, max_size=3).map(tuple)),
        "offset": draw(st.none() | NUMBERS | st.lists(NUMBERS, min_size=1, max_size=3).map(tuple)),
        "window": draw(WINDOWS) if placed == "window" else None,
        "bbox": draw(BOXES) if placed == "bbox" else None,
        "bbox_crs": draw(st.sampled_from([None, "EPSG:4326"])) if placed == "bbox" else None,
        "tile": draw(st.none() | st.integers(128, 10_000)),
        "blend": draw(st.sampled_from(["cosine", "linear", "none"])),
        "resampling": draw(st.sampled_from(["nearest", "bilinear"])),
        "simplify": draw(st.none() | st.floats(0, 10)),
        "partial_images": 0,  # a field of streams
    }
    return msgspec.structs.replace(some, **more)


def as_variation(form) -> ImageRequest:
    """The request of a form for ``/v1/images/variations``."""
    return edit_request(form, VARIATIONS)


def as_form(sent: Sent) -> ImageRequest:
    form = asyncio.run(read_form(incoming(sent.body, sent.headers), OPTIONS))
    request = edit_request(form)
    form.close()
    return request


@given(all_params())
def test_options_come_back_from_openais_client_as_they_were(params: OutputParams) -> None:
    """Whatever can be asked for in Python can be asked for over HTTP, as a form and, but for NaN, as JSON."""
    extra = params.to_wire()
    sent = sent_by(lambda ours: ours.images.edit(image=("a", b"x"), prompt="", extra_body=extra))
    # Compared as text: NaN is nodata, and unequal to itself.
    assert repr(as_form(sent).options) == repr(params)
    if params.nodata is None or params.nodata == params.nodata:  # not NaN
        sent = sent_by(lambda ours: ours.images.generate(prompt="x", extra_body=extra))
        body = asyncio.run(read_json(incoming(sent.body, sent.headers), OPTIONS))
        assert generation_request(body).options == params


PIECES = st.sampled_from(
    b'--xyz|--xyz--|\r\n|\r\n\r\n|\n|Content-Disposition: form-data; |name="image"|name="a"|; filename="x"'
    b'|Content-Type: text/plain|; filename=""|=|&|%41|%|a|"|\\|{|}|[|]|{"a":|1|null|,|\xff|\x00'.split(b"|")
)
BODIES = st.binary(max_size=200) | st.lists(PIECES | st.binary(max_size=3), max_size=25).map(b"".join)
TYPES = st.sampled_from(
    [
        "multipart/form-data; boundary=xyz",
        "application/x-www-form-urlencoded",
        "application/json",
        "multipart/form-data",
    ]
) | st.text(st.characters(max_codepoint=255), max_size=40)


@given(body=BODIES, kind=TYPES, piece=st.integers(1, 50), ends=st.sampled_from(["complete", "complete", "disconnect"]))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_any_bytes_are_a_form_or_an_error(body: bytes, kind: str, piece: int, ends: str) -> None:
    """Nothing else comes of a body, whatever its type, but that the client went away."""
    for read in (read_form, read_json):
        request = incoming(body, {"Content-Type": kind}, piece=piece, ends=ends)
        try:
            found = asyncio.run(read(request, OPTIONS))
        except ApiError as error:
            check_answer(error)
        except ClientDisconnect:
            assert ends == "disconnect"
        else:
            if read is read_form:
                assert isinstance(found, ReceivedForm)
                found.close()


def check_answer(error: ApiError) -> None:
    """The error is the client's, and can be sent."""
    assert 400 <= error.status < 500
    assert error_response(error).body


NAMES = st.sampled_from([*FIELDS, "image", "mask", "path", "part", "svg"]) | st.text(max_size=5)
SUFFIXES = st.sampled_from(["", "", "[]", "[row]", "[0]", "[", "]"])
KEYS = st.tuples(NAMES, SUFFIXES).map("".join)
VALUES = st.sampled_from(
    [
        "1",
        "0",
        "true",
        "png",
        "auto",
        "jpeg",
        "nan",
        "-1",
        "1,2",
        "1,2,3,4",
        "[1]",
        "{}",
        '{"row":1}',
        "null",
        "1e400",
        "",
    ]
) | st.text(max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | VALUES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(VALUES, inner, max_size=3),
    max_leaves=6,
)


@given(
    fields=st.dictionaries(KEYS, st.lists(VALUES, min_size=1, max_size=3), max_size=4), files=st.lists(KEYS, max_size=2)
)
def test_any_fields_are_a_request_or_an_error(fields: dict[str, list[str]], files: list[str]) -> None:
    """Nothing else comes of a form, and the error can be sent."""
    uploads = {name: [Upload("a.png", None, 5)] for name in files}
    for parse in (edit_request, as_variation):
        try:
            assert isinstance(parse(ReceivedForm({"image": ["data:,x"]} | fields, uploads)), ImageRequest)
        except ApiError as error:
            check_answer(error)


@given(JSON | st.dictionaries(NAMES, JSON, max_size=4))
def test_any_json_is_a_request_or_an_error(body) -> None:
    """Nothing else comes of a body of JSON, and the error can be sent."""
    for parse, start in ((edit_request, {"image": "data:,x"}), (generation_request, {"prompt": "x"})):
        try:
            assert isinstance(parse(start | body if isinstance(body, dict) else body), ImageRequest)
        except ApiError as error:
            check_answer(error)
