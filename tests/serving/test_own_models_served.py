"""A model of an author's own under the image routes: texts in, and results that no library knows out."""

from __future__ import annotations

import base64
import io
import json
from contextlib import closing

import httpx
import openai
import pytest
from PIL import Image

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def client(own_server):
    """OpenAI's client."""
    with closing(openai.OpenAI(base_url=f"{own_server.url}/v1", api_key="none", max_retries=0)) as client:
        yield client


def png(text=b"picture"):
    """A picture whose grey pixels are letters."""
    buffer = io.BytesIO()
    Image.frombytes("L", (len(text), 1), text).save(buffer, "png")
    return buffer.getvalue()


def content(answer):
    """The bytes of an answer's one result."""
    (entry,) = answer.data
    return base64.b64decode(entry.b64_json)


@pytest.mark.parametrize("prompt", ["a lake", "https://127.0.0.1:1/a.png", "file:///etc/passwd", '{"prompt": 1}'])
def test_a_text_becomes_an_image(client, prompt):
    """``images.generate`` hands the text to the mapper as it is, whatever it looks like."""
    answer = client.images.generate(model="any", prompt=prompt)
    assert (answer.output_format, answer.size) == ("png", f"{len(prompt)}x1")
    assert Image.open(io.BytesIO(content(answer))).tobytes().decode() == prompt


def test_formats_are_those_of_edits(client):
    """A WebP, an address of a stored result, and events are to be had too."""
    webp = client.images.generate(prompt="a lake", output_format="webp")
    assert Image.open(io.BytesIO(content(webp))).format == "WEBP"
    stored = client.images.generate(prompt="a lake", response_format="url")
    fetched = httpx.get(stored.data[0].url)
    assert Image.open(io.BytesIO(fetched.content)).tobytes() == b"a lake"
    (event,) = client.images.generate(prompt="a lake", stream=True)
    assert event.type == "image_generation.completed"
    assert Image.open(io.BytesIO(base64.b64decode(event.b64_json))).tobytes() == b"a lake"


def test_a_mapper_that_raises_is_a_bad_request(client):
    """The error names the prompt and what was raised; the model goes on."""
    with pytest.raises(openai.BadRequestError, match="ZeroDivisionError: no such table") as caught:
        client.images.generate(prompt="raises")
    assert caught.value.param == "prompt"
    assert content(client.images.generate(prompt="b"))


def test_an_edit_reaches_the_authors_mapper(client):
    """A picture that is uploaded comes to the mapper as an open file."""
    answer = client.images.edit(image=png(), prompt="")
    assert Image.open(io.BytesIO(content(answer))).tobytes() == b"picture"


def test_to_response_gives_json(client):
    """What it returns is the result, for edits as a file of JSON."""
    answer = client.images.edit(image=png(b'{"a": [1]}'), prompt="", extra_body={"processor": "echo", "tile": 5})
    assert answer.output_format == "json"
    assert json.loads(content(answer)) == {"given": {"a": [1]}, "tile": 5}


def test_to_response_gives_bytes_of_any_kind(client):
    """Bytes and their media type come in the answer; from an address they come as a file of no known kind."""
    body = {"processor": "chart"}
    answer = client.images.edit(image=png(b"a,b"), prompt="", extra_body=body)
    assert content(answer) == b"a,b"
    assert answer.media_type == "text/tab-separated-values; charset=utf-8"
    stored = client.images.edit(image=png(b"a,b"), prompt="", response_format="url", extra_body=body)
    fetched = httpx.get(stored.data[0].url)
    assert (fetched.content, fetched.headers["content-type"]) == (b"a,b", "application/octet-stream")
    assert stored.media_type == "text/tab-separated-values; charset=utf-8"
    assert fetched.headers["content-disposition"].startswith("attachment")
    pooled = httpx.post(str(client.base_url).replace("/v1/", "/pooling"), json={"data": "a,b", **body}).json()["data"]
    assert base64.b64decode(pooled["b64_json"]) == b"a,b"
    assert pooled["media_type"] == "text/tab-separated-values; charset=utf-8"


def test_a_picture_of_pillow_needs_no_to_response(client):
    """In any format of pictures, and as bare bytes for who asks for them."""
    for name in ("png", "webp", "jpeg"):
        extra = {"processor": "painted", "output_format": name}
        answer = client.images.edit(image=png(), prompt="", extra_body=extra)
        assert (answer.output_format, answer.size) == (name, "7x1")
        assert Image.open(io.BytesIO(content(answer))).format == name.upper()
    url = f"{client.base_url}images/edits"
    data, accept = {"processor": "painted"}, {"Accept": "image/png"}
    bare = httpx.post(url, files={"image": png()}, data=data, headers=accept)
    assert Image.open(io.BytesIO(bare.content)).convert("L").tobytes() == b"picture"


def test_data_need_no_to_response(client):
    """A dict with numpy's numbers is JSON, as a file of an edit and as the data of ``/pooling``."""
    expected = {"mean": 98.0, "first": [97.0, 98.0], "count": 3}
    answer = client.images.edit(image=png(b"abc"), prompt="", extra_body={"processor": "counted"})
    assert (answer.output_format, json.loads(content(answer))) == ("json", expected)
    url = str(client.base_url).replace("/v1/", "/pooling")
    assert httpx.post(url, json={"data": "abc", "processor": "counted"}).json()["data"] == expected


@pytest.mark.parametrize("route", ["edits", "generations", "pooling"])
def test_an_object_without_a_form_is_refused(client, route):
    """Without ``to_response`` the error names the method and the field that chooses another processor."""
    body = {"processor": "mute"}
    url = str(client.base_url)
    answer = {
        "edits": lambda: httpx.post(f"{url}images/edits", files={"image": png()}, data=body),
        "generations": lambda: httpx.post(f"{url}images/generations", json={"prompt": "a", **body}),
        "pooling": lambda: httpx.post(url.replace("/v1/", "/pooling"), json={"data": "a", **body}),
    }[route]()
    assert answer.status_code == 400
    told = answer.json()["error"]
    assert "to_response(output, params)" in told["message"]
    assert told["param"] == "processor"


def test_an_answer_that_is_none_is_the_servers_fault(client):
    """What ``to_response`` may not return is 500 without the author's data, and the server goes on."""
    with pytest.raises(openai.InternalServerError, match="DecodeError") as caught:
        client.images.generate(prompt="secret", extra_body={"processor": "failing"})
    assert "secret" not in str(caught.value)
    assert content(client.images.generate(prompt="b"))
