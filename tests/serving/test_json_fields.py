"""JSON of requests: what is decoded, what is refused by its length, and that this takes no memory."""

from __future__ import annotations

import json
import tracemalloc

import pytest

pytest.importorskip("vllm", reason="errors are told apart by vLLM's classes")

from vllm_mmout.messages import shown
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.request.fields import edit_request
from vllm_mmout.serving.request.json_body import decoded

pytestmark = pytest.mark.engine

MIB = 1 << 20
MANY = 1 << 19
"""Values of a body of some MiB."""
URL = "data:;base64," + "A" * MIB


def refused(body: bytes | bytearray, *, data: bool = False) -> ApiError:
    with pytest.raises(ApiError) as caught:
        decoded(bytearray(body) if isinstance(body, bytes) else body, data=data)
    return caught.value


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"image": URL, "bands": [2, 3], "prompt": "x" * 32_000, "user": None},
        {"image": [URL, "https://a.org/b.tif"], "scale": [0.5, 1]},
        {"images": [{"image_url": URL}, {"image_url": "x"}]},
        {"images": [{"type": "image_url", "image_url": {"url": URL}}]},
        {"image": ["data:,x"] * 100},
        {"image": []},
        {"prompt": "\U0001f30a" * 32_000},
        {"user": "x" * 8000, "n": 1},
        {"aoi": {"type": "Polygon", "coordinates": [[[8.25, 47.5]] * 50_000]}},
    ],
    ids=lambda value: str(list(value)),
)
def test_what_a_client_may_send_is_decoded(given) -> None:
    """As the standard library does it, with long images and prompts too."""
    assert decoded(bytearray(json.dumps(given).encode()), data=False) == given


@pytest.mark.parametrize("given", [{"data": [0.5] * MANY}, {"data": {"a": [{}, "x" * MIB]}, "tile": 64}, {"data": URL}])
def test_data_may_be_anything(given) -> None:
    """Where it is asked for."""
    assert decoded(bytearray(json.dumps(given).encode()), data=True) == given


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"image": [' + b'"a",' * MANY + b'"a"]}', "image"),
        (b'{"images": [' + b"[]," * MANY + b'"a"]}', "images"),
        (b'{"image": ["data:,x", [' + b"1," * MANY + b"1]]}", "image"),
        (b'{"image": {"image_url": ' + b"[" * 5 + b"1," * MANY + b"1" + b"]" * 5 + b"}}", "image"),
        (b'{"image": {' + b'"a":"b",' * MANY + b'"a":"b"}}', "image"),
        (b'{"bands": [' + b"1," * MANY + b"1]}", "bands"),
        (b'{"bands": [' + b"1," * MANY + b"null]}", "bands"),
        (b'{"scale": [' + b"0.125," * MANY + b"1]}", "scale"),
        (b'{"window": {' + b'"row":1,' * MANY + b'"row":1}}', "window"),
        (b'{"prompt": [' + b"1," * MANY + b"1]}", "prompt"),
        (b'{"data": [' + b"1," * MANY + b"1]}", "data"),
        (b'{"' + b"x" * MIB + b'": [' + b"1," * MANY + b"1]}", "x" * 100),
        (b"{" + b'"":1,' * MANY + b'"":1}', None),
        (b"[" + b'"image",' * MANY + b"1]", None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_too_long_is_refused_before_it_is_decoded(body, param) -> None:
    """By its length or the number of its values: nothing is made of them, and the message has their begin at most."""
    came = bytearray(body)
    tracemalloc.start()
    try:
        error = refused(came)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (error.status, error.param) in {(400, param), (413, param)}
    assert len(error.message) < 400
    assert peak < 3 * MIB


def test_data_of_very_many_lists_is_refused() -> None:
    """Each is some hundred bytes of memory, of two of JSON."""
    body = b'{"data": [' + b"[]," * (1 << 21) + b"1]}"
    assert (refused(body, data=True).status, refused(body, data=True).param) == (413, "data")


@pytest.mark.parametrize(
    "value",
    [[1, [2.5, None, "a'b"], {"a": [True], 5: {}}], "x" * 300, ["x" * 300], [[]] * 80, {"a": "x" * 97}, "\n", -1, None],
)
def test_a_value_in_a_message_is_its_repr(value) -> None:
    """Cut behind 100 characters."""
    text = repr(value)
    assert shown(value) == (text if len(text) <= 100 else text[:100] + "...")


def test_no_more_of_a_value_is_written_than_is_shown() -> None:
    """However long or deep it is."""
    asked = []

    class Told:
        def __repr__(self) -> str:
            asked.append(self)
            return "told"

    assert shown([Told() for _ in range(1000)]).startswith("[told, told")
    assert len(asked) < 30
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert shown(deep) == "[" * 100 + "..."
    while deep:  # or the interpreter would take them apart one within the other
        deep = deep.pop()


def test_what_was_decoded_is_a_request() -> None:
    """The images of a body in JSON are those of the request."""
    body = json.dumps({"images": [{"image_url": URL}], "bands": [1, "B4"]}).encode()
    request = edit_request(decoded(bytearray(body), data=False))
    assert (request.images, request.options.bands) == ((URL,), (1, "B4"))
