"""HTTP responses that are sent in chunks. Large results are read and encoded in a thread.

If a client is gone, or reads nothing of its response for too long, its request ends and its files are freed.
"""

from __future__ import annotations

import asyncio
import json
import time
from binascii import b2a_base64
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import anyio
from anyio.to_thread import run_sync
from starlette.concurrency import iterate_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse

from vllm_mmout.log import logger
from vllm_mmout.serving.options import ServingOptions, flag
from vllm_mmout.serving.response.result_files import MEDIA_TYPES, SOUND_TYPES, Encoded

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Message, Receive, Scope, Send

    from vllm_mmout.serving.response.verbatim import Verbatim

    Part: TypeAlias = bytes | Encoded | Verbatim

T = TypeVar("T")
_TURN_S: Final = 0.01
"""Time in seconds that the event loop gets to close a connection after it is aborted."""
_DISCARDED: Final = 64 << 20
"""Maximum number of bytes to read and discard from the body of a refused request."""
_DISCARDED_SECONDS: Final = 5.0
"""Maximum time in seconds to read and discard the body of a refused request."""
_TIMED: Final = "mmout_timed"
"""Key in the ASGI scope of a response that already has a send timeout, so that no second timeout is added."""
_READ = 3 << 17
"""Number of bytes that are read and encoded at a time, a multiple of 3, as base64 requires."""
_SAFE = frozenset({*MEDIA_TYPES.values(), *SOUND_TYPES.values()})
"""Media types that a browser may display. Others, such as HTML, are sent as downloads, because they could run
scripts."""


class ClosingResponse(Response):
    """Response that sends another response and then awaits the function ``close``, even if the client disconnects."""

    def __init__(self, answer: Response, close: Callable[[], Awaitable[None]]) -> None:
        self.answer = answer
        self._close = close
        self.status_code = answer.status_code
        self.background = None
        self.raw_headers = answer.raw_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, or only its headers for a HEAD request."""
        try:
            await send_in_time(
                self._headers_alone if scope.get("method") == "HEAD" else self.answer, scope, receive, send
            )
        finally:
            with anyio.CancelScope(shield=True):
                await asyncio.shield(self._close())

    async def _headers_alone(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": b""})


def parts_response(
    parts: Sequence[Part],
    media_type: str,
    *,
    as_text: bool,
    headers: Mapping[str, str] | None = None,
    status: int = 200,
) -> ClosingResponse:
    """Return a response that sends ``parts``, which are bytes or results, in chunks, and then closes the results.

    The header ``Content-Length`` has the total size. The results are also closed if the client disconnects.
    """
    length = sum(_length(part, as_text=as_text) for part in parts)
    content = iterate_in_threadpool(pieces(parts, as_text=as_text))
    all_headers = {"Content-Length": str(length), **(headers or {})}
    answer = StreamingResponse(content, status, headers=all_headers, media_type=media_type)
    return ClosingResponse(answer, partial(close_all, parts))


def json_response(
    entries: Sequence[Encoded],
    *,
    tiles: int = 0,
    used: Mapping[str, Any] | None = None,
    notes: Sequence[Mapping[str, Any]] = (),
    labels: Sequence[Mapping[str, str]] = (),
    urls: Sequence[str] = (),
    warnings: Sequence[str] = (),
) -> ClosingResponse:
    """Return the JSON response of OpenAI's image routes, with the results as base64 or as URLs.

    Format and size at the top are those of the first result. With ``labels`` each result has its own, beside its
    ``notes``. With ``urls`` the response has these addresses in place of the results, else it closes the results when
    they have been sent. ``tiles`` is the number of model forwards, for the usage if ``used`` is None.
    """
    first = entries[0]
    head = {"created": int(time.time()), **described(first), "usage": usage(tiles) if used is None else used}
    head |= {"warnings": list(warnings)} if warnings else {}
    parts: list[Part] = [_json(head)[:-1] + b',"data":[']
    for place, entry in enumerate(entries):
        own: dict[str, Any] = {**labels[place], **described(entry)} if labels else {}
        own |= notes[place] if notes else {}
        if place:
            parts.append(b",")
        if urls:
            parts += [_json({**own, "url": urls[place]})]
        else:
            parts += [_json(own)[:-1] + (b"," if own else b"") + b'"b64_json":"', entry, b'"}']
    return parts_response([*parts, b"]}"], MEDIA_TYPES["json"], as_text=True)


def bare_response(
    entry: Encoded, headers: Mapping[str, str] | None = None, *, name: str = "result", status: int = 200
) -> ClosingResponse:
    """Return a response that sends only the file ``entry``, and then closes it."""
    shown = "inline" if entry.media_type in _SAFE else "attachment"
    all_headers = {
        "Content-Disposition": f'{shown}; filename="{name}{entry.suffix}"',
        "X-Content-Type-Options": "nosniff",
        **(headers or {}),
    }
    return parts_response([entry], entry.media_type, as_text=False, headers=all_headers, status=status)


def usage(tiles: int) -> dict[str, Any]:
    """Return OpenAI's usage object, which reports the number of processed tiles as the number of input tokens."""
    return {
        "input_tokens": tiles,
        "input_tokens_details": {"image_tokens": tiles, "text_tokens": 0},
        "output_tokens": 0,
        "total_tokens": tiles,
    }


def pieces(parts: Iterable[Part], *, as_text: bool) -> Iterator[bytes]:
    """Yield the bytes of a response in chunks of a few hundred KiB. The call blocks while results are read from disk.

    ``parts`` are bytes and results, in order. Results are encoded as base64 if ``as_text`` is True. Chunks save
    memory: an unchunked result would need three times its size.
    """
    waiting = bytearray()
    for part in parts:
        if isinstance(part, bytes):
            waiting += part
            continue
        for at in range(0, part.nbytes, _READ):
            read = part.read(at, _READ)
            waiting += b2a_base64(read, newline=False) if as_text and isinstance(part, Encoded) else read
            if len(waiting) >= _READ:
                yield bytes(waiting)
                waiting.clear()
    if waiting:
        yield bytes(waiting)


async def close_all(parts: Iterable[Part]) -> None:
    """Close all results in ``parts`` in a thread, even if the task is cancelled. Parts that are bytes are skipped."""
    with anyio.CancelScope(shield=True):
        await run_sync(close_entries, [part for part in parts if not isinstance(part, bytes)])


def close_entries(entries: Iterable[Encoded | Verbatim]) -> None:
    """Close encoded results. This frees their memory, and blocks while their temporary files are removed."""
    for entry in entries:
        entry.close()


def _length(part: Part, *, as_text: bool) -> int:
    if isinstance(part, bytes):
        return len(part)
    return (part.nbytes + 2) // 3 * 4 if as_text and isinstance(part, Encoded) else part.nbytes


def described(entry: Encoded) -> dict[str, str]:
    """Return OpenAI's response fields for a picture, such as format, size and background."""
    own = None if entry.format in MEDIA_TYPES else entry.media_type  # for files of unknown format
    known = {"background": entry.background, "output_format": entry.format, "size": entry.size, "media_type": own}
    return {name: value for name, value in known.items() if value is not None}


def _json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await ``work``. If the client disconnects first, cancel the work and raise ClientDisconnect."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        for task in (watching, working):
            task.cancel()
        await asyncio.gather(watching, working, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def send_in_time(
    answer: Callable[[Scope, Receive, Send], Awaitable[None]], scope: Scope, receive: Receive, send: Send
) -> None:
    """Run the ASGI app ``answer`` to send a response. Abort the connection if the client stops reading for too long.

    The limit is ``--mmout-send-timeout``. If one response wraps another, only the outer one measures the time.
    """
    if _TIMED in scope:
        await answer(scope, receive, send)
        return
    # uvicorn's own method, unless middleware wraps it. An exception would be logged by uvicorn with its traceback.
    connection: asyncio.Transport | None = getattr(getattr(receive, "__self__", None), "transport", None)
    try:
        await answer({**scope, _TIMED: True}, receive, _timed(send, _send_timeout(scope), connection))
    except CutOff as ended:
        logger.info("%s", ended)
        if connection is not None:
            connection.abort()  # close() would wait until the client has read all data
            await asyncio.sleep(_TURN_S)


class CutOff(Exception):  # noqa: N818 - not an error: it only ends the response
    """Exception that ends a connection early, so that the client sees that the response is incomplete."""


def _timed(send: Send, seconds: float, connection: asyncio.Transport | None) -> Send:
    """Return the ASGI function ``send`` with a timeout for each message."""

    async def timed(message: Message) -> None:
        try:
            async with asyncio.timeout(seconds):
                await send(message)
        except TimeoutError:
            limit = f"{seconds:g} s ({flag('send_timeout')})"
            raise CutOff(f"a client took nothing of its answer for {limit}; its connection was ended") from None
        except RuntimeError:  # the connection was closed, and uvicorn does not know it yet
            if connection is None or not connection.is_closing():
                raise
            raise CutOff("a client closed its connection while its answer was sent") from None

    return timed


def _send_timeout(scope: Scope) -> float:
    """Return the server's send timeout in seconds, or the default if ``scope`` lacks the server's options."""
    options = getattr(getattr(getattr(scope.get("app"), "state", None), "mmout", None), "options", None)
    return (options if isinstance(options, ServingOptions) else ServingOptions()).send_timeout


async def discard(request: Request) -> None:
    """Read and discard the rest of a request's body, so that the client receives the error response.

    If the connection were closed while the client is sending, it would be reset, and the response would be lost.
    """
    # A client that waits for "100 Continue" has sent no data, and a read would make it send some.
    if "100-continue" not in request.headers.get("expect", "").lower():
        await discard_rest(request)


async def discard_rest(request: Request) -> None:
    """Read and discard the rest of a request's body, up to `_DISCARDED` bytes and `_DISCARDED_SECONDS`."""
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
