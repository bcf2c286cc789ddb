"""Read request bodies and forms within the server's limits. Uploaded files go to memory or to disk.

python-multipart finds the parts of a form. starlette's own reader is not used: it accepts a form that is cut off, and
closes large files on the event loop.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.inputs.data_urls import form_field
from vllm_mmout.serving.inputs.uploads import ReceivedForm, Upload
from vllm_mmout.serving.response.responses import discard, discard_rest

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks
    from starlette.requests import Request

    from vllm_mmout.serving.options import ServingOptions

T = TypeVar("T")
MAX_FILES = 100
MAX_FIELDS = 1000
MAX_TEXT = 64 << 20
"""Maximum size in bytes of a JSON body, or of all text fields of a form. Data URLs count as text."""
_MAX_NAME = 200
_AT_ONCE = 1 << 14
"""Number of bytes that a client must send within each receive timeout. Fewer bytes do not restart the timeout."""
_SLOWEST = 1 << 15
"""Minimum average upload speed in bytes per second. Slower uploads are refused."""
_SMALL = 1 << 16
"""Size in bytes up to which a body is parsed on the event loop. Larger bodies are parsed in a thread."""


async def read_form(request: Request, options: ServingOptions) -> ReceivedForm:
    """Read a multipart or URL-encoded form. The caller must close the form to free the uploaded files."""
    kind, parameters = parse_options_header(request.headers.get("content-type"))
    if kind == b"multipart/form-data":
        boundary = parameters.get(b"boundary", b"")
        # RFC 2046, 5.1.1. An empty boundary would match everywhere.
        if not re.fullmatch(rb"[0-9A-Za-z'()+_,./:=? -]{1,256}", boundary):
            error = ApiError(400, "multipart/form-data without a boundary; leave Content-Type to the client's library")
            raise await _refused(request, error)
        async with _received(request, options) as pieces:
            return await _multipart(pieces, boundary)
    if kind != b"application/x-www-form-urlencoded":
        raise await unsupported(request, "multipart/form-data")
    return await parsed(_urlencoded, await read_body(request, options, MAX_TEXT))


async def read_body(request: Request, options: ServingOptions, most: int | None = None) -> bytearray:
    """Read a request body. Raise ApiError if it exceeds ``most`` bytes or the server's upload limit."""
    body = bytearray()
    async with _received(request, options) as pieces:
        async for piece in pieces:
            body += piece
            if most is not None and len(body) > most:
                raise too_much_text()
    return body


async def parsed(parse: Callable[[bytearray], T], body: bytearray) -> T:
    """Return ``parse(body)``. A large body is parsed in a thread."""
    return parse(body) if len(body) <= _SMALL else await run_in_threadpool(parse, body)


def is_json(request: Request) -> bool:
    """Return whether the ``Content-Type`` of a request is JSON."""
    kind, _ = parse_options_header(request.headers.get("content-type"))
    return kind == b"application/json" or kind.endswith(b"+json")


async def _refused(request: Request, error: ApiError) -> ApiError:
    await discard(request)
    return error


async def unsupported(request: Request, needed: str) -> ApiError:
    """Discard the request's body, and return a 415 error that asks for the content type ``needed``."""
    kind, _ = parse_options_header(request.headers.get("content-type"))
    shown_kind = kind.decode("latin-1")[:100] or "nothing"
    return await _refused(request, ApiError(415, f"the Content-Type is {shown_kind!r}; send {needed}"))


def too_much_text(name: str | None = None) -> ApiError:
    """Return the 413 error for a body with too much text. ``name`` is the field that is too long, if known."""
    message = f"the text of the request is longer than {MAX_TEXT >> 20} MiB; send data as a file"
    return ApiError(413, message, param=name)


def _too_large(options: ServingOptions) -> ApiError:
    most = options.max_upload
    return ApiError(413, f"the request's body is larger than {most} bytes, the most that is taken (--mmout-max-upload)")


@asynccontextmanager
async def _received(request: Request, options: ServingOptions) -> AsyncIterator[AsyncIterator[bytes]]:
    """Yield an iterator over the chunks of a request's body. Raise ApiError if the body exceeds a limit of the server.

    After an error other than a timeout, the rest of the body is read and discarded.
    """
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        error = ApiError(415, f"the body is sent as {encoding[:40]!r}, which is not taken; send it as it is")
        raise await _refused(request, error)
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and (len(length) > 18 or int(length) > options.max_upload):
        raise await _refused(request, _too_large(options))
    complete = asyncio.Event()
    try:
        async with aclosing(_chunks(request, options, complete)) as chunks:
            yield chunks
    except ApiError as error:
        if not complete.is_set() and error.status != 408:
            await discard_rest(request)
        raise


async def _chunks(request: Request, options: ServingOptions, complete: asyncio.Event) -> AsyncGenerator[bytes, None]:
    """Yield the chunks of a body. Set ``complete`` at the end. Raise ApiError if the body is too large or too slow."""
    size, reached, waited, total = 0, 0, 0.0, 0.0
    limit = options.receive_timeout
    while not complete.is_set():
        since = monotonic()
        try:
            async with asyncio.timeout(limit - waited):
                message = await request.receive()
        except TimeoutError:
            within = f"{limit:g} s (--mmout-receive-timeout)"
            raise ApiError(408, f"the next piece of the request's body did not come within {within}") from None
        if not message.get("more_body", False):
            complete.set()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = bytes(message.get("body", b""))
        took = monotonic() - since
        waited, total = waited + took, total + took
        size += len(chunk)
        if size > options.max_upload:
            raise _too_large(options)
        if total > limit + size / _SLOWEST:
            raise ApiError(
                408,
                f"the request's body came with less than {_SLOWEST >> 10} KiB a second, the slowest that is taken"
                f" after the first {limit:g} s (--mmout-receive-timeout)",
            )
        if size - reached >= _AT_ONCE:
            reached, waited = size, 0.0
        if chunk:
            yield chunk


def _urlencoded(body: bytearray) -> ReceivedForm:
    form = ReceivedForm({}, {})
    if body.count(b"&") >= MAX_FIELDS:
        raise _too_many("fields", MAX_FIELDS)
    try:
        for field in body.split(b"&") if body else ():
            name, text = form_field(field)
            form.fields.setdefault(name, []).append(text)
    except ValueError:
        raise ApiError(400, "the form is malformed; send it as multipart/form-data") from None
    return form


def _too_many(what: str, most: int) -> ApiError:
    return ApiError(413, f"the form has more than {most} {what}, the most that are taken; send fewer")


async def _multipart(pieces: AsyncIterator[bytes], boundary: bytes) -> ReceivedForm:
    parts = _FormParts()
    try:
        await parts.read(pieces, boundary)
        return await run_in_threadpool(parts.form)
    except BaseException:
        # A disk needs a while to free a large file. The thread goes on even if this task is cancelled again.
        await run_in_threadpool(parts.close)
        raise


class _FormParts:
    """Parser callbacks that collect the fields and files of a multipart form."""

    def __init__(self) -> None:
        self._ended = False
        self._fields: list[tuple[str, str]] = []
        self._files: list[tuple[str, Upload]] = []
        self._text_size = 0
        self._header = (bytearray(), bytearray())
        self._disposition, self._name = b"", ""
        self._text: bytearray | None = None
        self._unwritten: deque[tuple[Upload, bytes]] = deque()

    async def read(self, chunks: AsyncIterator[bytes], boundary: bytes) -> None:
        """Parse a multipart form from chunks of its body. Large uploads are written to disk in a thread."""
        callbacks: MultipartCallbacks = {
            "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
            "on_header_end": self._header_ends,
            "on_headers_finished": self._headers_end,
            "on_part_data": self._data,
            "on_part_end": self._part_ends,
            "on_end": self._ends,
        }
        try:
            parser = MultipartParser(boundary, callbacks)
            async for chunk in chunks:
                parser.write(chunk)
                unwritten, self._unwritten = self._unwritten, deque()
                while unwritten and unwritten[0][0].takes(len(unwritten[0][1])):
                    _write([unwritten.popleft()])
                if unwritten:
                    await run_in_threadpool(_write, unwritten)
        except FormParserError as error:
            raise ApiError(400, f"the form is malformed: {error}; send it as multipart/form-data") from None
        if not self._ended:
            raise ApiError(400, "the form is incomplete: the boundary that ends it is missing; send it again")

    def form(self) -> ReceivedForm:
        form = ReceivedForm({}, {})
        for name, text in self._fields:
            form.fields.setdefault(name, []).append(text)
        for name, upload in self._files:
            upload.file.seek(0)
            form.files.setdefault(name, []).append(upload)
        return form

    def close(self) -> None:
        for _, upload in self._files:
            upload.file.close()

    def _header_ends(self) -> None:
        name, value = self._header
        if name.lower() == b"content-disposition":
            self._disposition = bytes(value)
        self._header = (bytearray(), bytearray())

    def _headers_end(self) -> None:
        kind, options = parse_options_header(self._disposition)
        self._disposition = b""
        name = options.get(b"name", b"")
        if kind != b"form-data" or not name:
            raise ApiError(400, 'a part of the form has no name; send "Content-Disposition: form-data; name=..."')
        self._name = _text(name[: _MAX_NAME + 1], "the name of a field")
        if len(name) > _MAX_NAME:
            raise ApiError(400, f"the name of a field is longer than {_MAX_NAME} bytes; shorten it")
        if b"filename" in options:
            self._text = None
            self._files.append((self._name, Upload.begun(options[b"filename"].decode(errors="replace"))))
            if len(self._files) > MAX_FILES:
                raise _too_many("files", MAX_FILES)
        else:
            self._text = bytearray()
            if len(self._fields) == MAX_FIELDS:
                raise _too_many("fields", MAX_FIELDS)

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._text is None:
            self._unwritten.append((self._files[-1][1], data[start:end]))
            return
        self._text_size += end - start
        if self._text_size > MAX_TEXT:
            raise too_much_text(self._name)
        self._text += data[start:end]

    def _part_ends(self) -> None:
        if self._text is not None:
            self._fields.append((self._name, _text(self._text, f"the field {self._name!r}", self._name)))
            self._text = None

    def _ends(self) -> None:
        self._ended = True


def _write(pieces: Iterable[tuple[Upload, bytes]]) -> None:
    for upload, piece in pieces:
        upload.write(piece)


def _text(data: bytes | bytearray, what: str, name: str | None = None) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ApiError(400, f"{what} is not UTF-8 text; send data as a file", param=name) from None
