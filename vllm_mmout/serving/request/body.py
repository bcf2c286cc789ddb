"""The body of a request, within the server's limits: forms and JSON."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from python_multipart.multipart import parse_options_header
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.inputs.data_urls import unescaped
from vllm_mmout.serving.inputs.sources import Form, Upload
from vllm_mmout.serving.request.fields import decoded
from vllm_mmout.serving.request.multipart import MAX_FIELDS, MAX_TEXT, read_multipart, too_much_text

if TYPE_CHECKING:
    from starlette.requests import Request

    from vllm_mmout.serving.options import ServingOptions

T = TypeVar("T")

__all__ = ["Form", "Upload", "discard", "is_json", "parse_json", "read_body", "read_form", "read_json"]

_AT_ONCE = 1 << 14
"""Bytes that must come within the time a piece may take: with less, one byte a minute would hold a place for days."""
_SLOWEST = 1 << 15
"""Bytes a second, on average, that a body must come with: a quarter of 1 Mbit/s."""
_SMALL = 1 << 16
"""Bytes that are parsed on the event loop."""
_DISCARDED = 64 << 20
_DISCARDED_SECONDS = 5.0


async def read_form(request: Request, options: ServingOptions) -> Form:
    """Read a form, ``multipart/form-data`` or ``application/x-www-form-urlencoded``."""
    kind, parameters = parse_options_header(request.headers.get("content-type"))
    if kind == b"multipart/form-data":
        boundary = parameters.get(b"boundary", b"")
        # RFC 2046, 5.1.1; an empty one would be found everywhere.
        if not re.fullmatch(rb"[0-9A-Za-z'()+_,./:=? -]{1,256}", boundary):
            error = ApiError(400, "multipart/form-data without a boundary; leave Content-Type to the client's library")
            raise await _refused(request, error)
        async with _received(request, options) as pieces:
            return await read_multipart(pieces, boundary)
    if kind != b"application/x-www-form-urlencoded":
        raise await _refused(request, _unsupported(kind, "multipart/form-data"))
    return await _parsed(_urlencoded, await _whole(request, options, MAX_TEXT))


def is_json(request: Request) -> bool:
    """Whether a body is said to be JSON."""
    kind, _ = parse_options_header(request.headers.get("content-type"))
    return kind == b"application/json" or kind.endswith(b"+json")


async def read_json(request: Request, options: ServingOptions) -> Any:
    """Read a body of JSON whose images, and prompt, may be long."""
    if not is_json(request):
        kind, _ = parse_options_header(request.headers.get("content-type"))
        raise await _refused(request, _unsupported(kind, "application/json"))
    return await _parsed(partial(decoded, data=False), await _whole(request, options, MAX_TEXT))


async def read_body(request: Request, options: ServingOptions) -> bytearray:
    """Read a body as it is."""
    return await _whole(request, options, None)


async def parse_json(body: bytearray) -> Any:
    """Parse JSON whose "data" may be anything, in a thread where it is large."""
    if len(body) > MAX_TEXT:
        raise too_much_text(None)
    return await _parsed(partial(decoded, data=True), body)


async def discard(request: Request) -> None:
    """Read what a client still sends, for a moment, and throw it away, so that it sees why it is refused.

    A connection that is closed while its client is sending is reset, and the answer with it.
    """
    # Whoever waits for "100 Continue" has sent nothing yet, and is told to by the first look.
    if "100-continue" not in request.headers.get("expect", "").lower():
        await _discard_rest(request)


async def _refused(request: Request, error: ApiError) -> ApiError:
    await discard(request)
    return error


async def _discard_rest(request: Request) -> None:
    size = 0
    try:
        async with asyncio.timeout(_DISCARDED_SECONDS):
            while size < _DISCARDED:
                message = await request.receive()
                size += len(message.get("body", b""))
                if not message.get("more_body"):
                    return
    except TimeoutError:
        return


@asynccontextmanager
async def _received(request: Request, options: ServingOptions) -> AsyncIterator[AsyncIterator[bytes]]:
    """The body as it comes, within the limits; when that ends with an error of the client's, the rest is discarded."""
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        error = ApiError(415, f"the body is sent as {encoding[:40]!r}, which is not taken; send it as it is")
        raise await _refused(request, error)
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and (len(length) > 18 or int(length) > options.max_upload):
        raise await _refused(request, _too_large(options))
    body = _Body(request, options)
    try:
        async with aclosing(body.pieces()) as pieces:
            yield pieces
    except ApiError as error:
        if not body.complete and error.status != 408:
            await _discard_rest(request)
        raise


class _Body:
    def __init__(self, request: Request, options: ServingOptions) -> None:
        self.complete = False
        self._request = request
        self._options = options

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        size, reached, waited, total = 0, 0, 0.0, 0.0
        while not self.complete:
            since = monotonic()
            piece = await self._next(self._options.receive_timeout - waited)
            took = monotonic() - since
            waited, total = waited + took, total + took
            size += len(piece)
            if size > self._options.max_upload:
                raise _too_large(self._options)
            if total > self._options.receive_timeout + size / _SLOWEST:
                raise self._too_slow()
            if size - reached >= _AT_ONCE:
                reached, waited = size, 0.0
            if piece:
                yield piece

    def _too_slow(self) -> ApiError:
        return ApiError(
            408,
            f"the request's body came with less than {_SLOWEST >> 10} KiB a second, the slowest that is taken after the"
            f" first {self._options.receive_timeout:g} s (--mmout-receive-timeout)",
        )

    async def _next(self, seconds: float) -> bytes:
        try:
            async with asyncio.timeout(seconds):
                message = await self._request.receive()
        except TimeoutError:
            limit = f"{self._options.receive_timeout:g} s (--mmout-receive-timeout)"
            raise ApiError(408, f"the next piece of the request's body did not come within {limit}") from None
        self.complete = not message.get("more_body", False)
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        return bytes(message.get("body", b""))


async def _whole(request: Request, options: ServingOptions, most: int | None) -> bytearray:
    body = bytearray()
    async with _received(request, options) as pieces:
        async for piece in pieces:
            body += piece
            if most is not None and len(body) > most:
                raise too_much_text(None)
    return body


async def _parsed(parse: Callable[[bytearray], T], body: bytearray) -> T:
    return parse(body) if len(body) <= _SMALL else await run_in_threadpool(parse, body)


def _urlencoded(body: bytearray) -> Form:
    form = Form({}, {})
    if body.count(b"&") >= MAX_FIELDS:
        raise ApiError(413, f"the form has more than {MAX_FIELDS} fields, the most that are taken; send fewer")
    try:
        for field in body.split(b"&") if body else ():
            name, value = _pair(field)
            form.fields.setdefault(name, []).append(value)
    except ValueError:
        raise ApiError(400, "the form is malformed; send it as multipart/form-data") from None
    return form


def _pair(field: bytearray) -> tuple[str, str]:
    """Name and value of a field of such a form."""
    name, sign, value = (b"".join(unescaped(part.replace(b"+", b" "))).decode() for part in field.partition(b"="))
    if not sign or not field.isascii():
        raise ValueError(f"{field[:100]!r} is no field")
    return name, value


def _too_large(options: ServingOptions) -> ApiError:
    most = options.max_upload
    return ApiError(413, f"the request's body is larger than {most} bytes, the most that is taken (--mmout-max-upload)")


def _unsupported(kind: bytes, wanted: str) -> ApiError:
    found = kind.decode("latin-1")[:100] or "nothing"
    return ApiError(415, f"the Content-Type is {found!r}; send {wanted}")
