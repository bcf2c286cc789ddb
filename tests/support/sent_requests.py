"""Requests as clients send them, the bytes of OpenAI's own among them, for what reads them."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import openai
import pytest
from openai.types import image_edit_params
from starlette.requests import Request

from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.options import ServingOptions
from vllm_mmout.serving.request.fields import ImageRequest, edit_request, generation_request
from vllm_mmout.serving.request.json_body import read_json, read_request

# OpenAI's client comes with a client of HTTP of its own choice, which makes the bytes that are tested here.
_http = importlib.import_module(openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0])

EMPTY_ANSWER = {"created": 0, "data": []}


@dataclass(frozen=True)
class Sent:
    """A request as it was sent."""

    body: bytes
    headers: Mapping[str, str]
    path: str


def sent_by(call: Callable[[openai.OpenAI], Any]) -> Sent:
    """What OpenAI's client sends in ``call``."""
    found: list[Sent] = []

    def answer(request: Any) -> Any:
        found.append(Sent(request.read(), dict(request.headers), request.url.path))
        return _http.Response(200, json=EMPTY_ANSWER)

    with client(answer) as ours:
        call(ours)
    (sent,) = found
    return sent


@contextmanager
def client(answer: Callable[[Any], Any]) -> Iterator[openai.OpenAI]:
    """OpenAI's client, whose requests ``answer`` answers."""
    with openai.DefaultHttpxClient(transport=_http.MockTransport(answer)) as transport:
        yield openai.OpenAI(base_url="http://server/v1", api_key="none", http_client=transport, max_retries=0)


def answered_with(status: int, json: Any, headers: Mapping[str, str] | None = None) -> Callable[[Any], Any]:
    """For `client`: one answer to everything."""
    return lambda request: _http.Response(status, json=json, headers=headers)


def incoming(
    body: bytes | Iterable[bytes], headers: Mapping[str, str], *, ends: str = "complete", piece: int = 1 << 16
) -> Request:
    """A request as a route gets it.

    Args:
        body: all bytes, or the pieces that come.
        headers: of the request.
        ends: what comes behind the last piece: "complete", "disconnect", or "never" anything.
        piece: bytes that come at once.

    """
    pieces = [body[at : at + piece] for at in range(0, len(body), piece)] if isinstance(body, bytes) else list(body)
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in pieces]
    if ends == "complete":
        messages.append({"type": "http.request", "body": b"", "more_body": False})
    if ends == "disconnect":
        messages.append({"type": "http.disconnect"})

    async def receive() -> Any:
        if not messages:
            await asyncio.get_running_loop().create_future()
        return messages.pop(0)

    raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": raw}
    return Request(scope, receive)


def multipart(*parts: tuple[str, bytes | str | tuple[str, bytes]]) -> Sent:
    """A form as an HTTP client makes it; a pair of name and bytes is a file."""
    files = [(name, value if isinstance(value, tuple) else (None, value)) for name, value in parts]
    request = _http.Request("POST", "http://server/", files=files)
    return Sent(request.read(), dict(request.headers), "/")


IMAGE = ("image", ("a.png", b"pixels"))


def read(sent: Sent, parse=edit_request) -> ImageRequest:
    """The request of what was sent; its files are closed."""

    async def reading() -> ImageRequest:
        request = incoming(sent.body, sent.headers)
        if parse is generation_request:
            return parse(await read_json(request, ServingOptions()))
        async with AsyncExitStack() as held:
            return parse(await read_request(request, ServingOptions(), held))

    return asyncio.run(reading())


def edited(**options: Any) -> ImageRequest:
    """The request of OpenAI's client with these arguments; unknown ones go into its ``extra_body``."""
    own = {
        name: value for name, value in options.items() if name in image_edit_params.ImageEditParamsBase.__annotations__
    }
    own |= {"image": ("a.png", b"x"), "prompt": ""} | own
    extra = {name: value for name, value in options.items() if name not in own and name != "stream"}
    if "stream" in options:
        own["stream"] = options["stream"]
    return read(sent_by(lambda ours: ours.images.edit(**own, extra_body=extra)))


def filled(*fields: tuple[str, str], parse=edit_request) -> ImageRequest:
    """The request of a form with these fields and an image."""
    return read(multipart(IMAGE, *fields), parse)


def refusal(made, *args: Any, **options: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        made(*args, **options)
    assert caught.value.status == 400
    return caught.value
