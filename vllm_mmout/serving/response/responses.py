"""Answers that are sent piece by piece, what is large read and encoded in a thread; and clients that go away meanwhile.

The work of a client that is gone, or takes nothing of its answer, ends, and nothing is held for it for long.
"""

from __future__ import annotations

import asyncio
import json
import time
from binascii import b2a_base64
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
from anyio.to_thread import run_sync
from starlette.concurrency import iterate_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse

from vllm_mmout.log import logger
from vllm_mmout.serving.options import ServingOptions, flag
from vllm_mmout.serving.response.result_files import MEDIA_TYPES, SOUND_TYPES, Encoded

if TYPE_CHECKING:
    from typing import TypeAlias

    from starlette.requests import Request
    from starlette.types import Message, Receive, Scope, Send

    Part: TypeAlias = bytes | Encoded

T = TypeVar("T")
_TURN_S: Final = 0.01
"""A turn of the event loop, with which a connection that was ended is lost."""
_DISCARDED: Final = 64 << 20
_DISCARDED_SECONDS: Final = 5.0
_READ = 3 << 17
"""Bytes that are read and encoded at once: of whole groups of base64, and little enough to hold nothing else up."""
_SAFE = frozenset({*MEDIA_TYPES.values(), *SOUND_TYPES.values()})
"""What a browser may show by itself: no code of an author's ``to_response`` runs under the server's name."""


class PiecesResponse(StreamingResponse):
    """An answer of known length whose parts are sent piece by piece, and closed in the end, however that comes."""

    def __init__(
        self,
        parts: Sequence[Part],
        media_type: str,
        *,
        as_text: bool,
        headers: Mapping[str, str] | None = None,
        status: int = 200,
    ) -> None:
        self._parts = parts
        length = sum(_length(part, as_text=as_text) for part in parts)
        super().__init__(
            iterate_in_threadpool(pieces(parts, as_text=as_text)),
            status,
            headers={"Content-Length": str(length), **(headers or {})},
            media_type=media_type,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, or its headers alone where they are asked for."""
        try:
            await send_in_time(
                self._headers_alone if scope.get("method") == "HEAD" else super().__call__, scope, receive, send
            )
        finally:
            await close_all(self._parts)

    async def _headers_alone(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": b""})


def json_response(
    entries: Sequence[Encoded],
    *,
    tiles: int = 0,
    used: Mapping[str, Any] | None = None,
    notes: Sequence[Mapping[str, Any]] = (),
    processors: Sequence[str] = (),
    urls: Sequence[str] = (),
    warnings: Sequence[str] = (),
) -> PiecesResponse:
    """The answer of OpenAI's image routes, `openai.types.ImagesResponse`.

    What the answer says of its results is said of the first one; where processors were asked for by name, each place
    says it of its own, beside its note. With ``urls`` results are named there, not sent; else closed when sent.
    """
    first = entries[0]
    head = {"created": int(time.time()), **described(first), "usage": usage(tiles) if used is None else used}
    head |= {"warnings": list(warnings)} if warnings else {}
    parts: list[Part] = [_json(head)[:-1] + b',"data":[']
    for place, entry in enumerate(entries):
        own: dict[str, Any] = {"processor": processors[place], **described(entry)} if processors else {}
        own |= notes[place] if notes else {}
        if place:
            parts.append(b",")
        if urls:
            parts += [_json({**own, "url": urls[place]})]
        else:
            parts += [_json(own)[:-1] + (b"," if own else b"") + b'"b64_json":"', entry, b'"}']
    return PiecesResponse([*parts, b"]}"], MEDIA_TYPES["json"], as_text=True)


def bare_response(
    entry: Encoded, headers: Mapping[str, str] | None = None, *, name: str = "result", status: int = 200
) -> PiecesResponse:
    """The bytes of one result, which a client calls so, with its suffix; it is closed when they have been sent."""
    shown = "inline" if entry.media_type in _SAFE else "attachment"
    said = {
        "Content-Disposition": f'{shown}; filename="{name}{entry.suffix}"',
        "X-Content-Type-Options": "nosniff",
        **(headers or {}),
    }
    return PiecesResponse([entry], entry.media_type, as_text=False, headers=said, status=status)


def usage(tiles: int) -> dict[str, Any]:
    """What a request took, as OpenAI counts it: a forward of the model is a token of its input."""
    return {
        "input_tokens": tiles,
        "input_tokens_details": {"image_tokens": tiles, "text_tokens": 0},
        "output_tokens": 0,
        "total_tokens": tiles,
    }


def pieces(parts: Iterable[Part], *, as_text: bool) -> Iterator[bytes]:
    """The bytes of all parts, some hundred KiB at a time; blocks.

    As one text of base64 a result would be in memory three times.
    """
    waiting = bytearray()
    for part in parts:
        if isinstance(part, bytes):
            waiting += part
            continue
        for at in range(0, part.nbytes, _READ):
            read = part.read(at, _READ)
            waiting += b2a_base64(read, newline=False) if as_text else read
            if len(waiting) >= _READ:
                yield bytes(waiting)
                waiting.clear()
    if waiting:
        yield bytes(waiting)


async def close_all(parts: Iterable[Part]) -> None:
    """Let results go, in a thread, also where the task has been cancelled."""
    with anyio.CancelScope(shield=True):
        await run_sync(close_entries, [part for part in parts if not isinstance(part, bytes)])


def close_entries(entries: Iterable[Encoded]) -> None:
    """Let results go; blocks as long as a disk takes."""
    for entry in entries:
        entry.close()


def _length(part: Part, *, as_text: bool) -> int:
    if isinstance(part, bytes):
        return len(part)
    return (part.nbytes + 2) // 3 * 4 if as_text else part.nbytes


def described(entry: Encoded) -> dict[str, str]:
    """What OpenAI says of a picture, as far as the result has it."""
    own = None if entry.format in MEDIA_TYPES else entry.media_type  # of bytes that no name of a format tells
    known = {"background": entry.background, "output_format": entry.format, "size": entry.size, "media_type": own}
    return {name: value for name, value in known.items() if value is not None}


def _json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do work for a client, as long as it is there."""
    doing = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({doing, watching}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise ClientDisconnect
    finally:
        for task in (watching, doing):
            task.cancel()
        await asyncio.gather(watching, doing, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class ClosingResponse(Response):
    """An answer, and what is let go when it has been sent or its client has gone away."""

    def __init__(self, answer: Response, held: AsyncExitStack) -> None:
        self.answer = answer
        self._held = held
        self.status_code = answer.status_code
        self.background = None
        self.raw_headers = answer.raw_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        try:
            await send_in_time(self.answer, scope, receive, send)
        finally:
            await asyncio.shield(self._held.aclose())


async def send_in_time(
    answer: Callable[[Scope, Receive, Send], Awaitable[None]], scope: Scope, receive: Receive, send: Send
) -> None:
    """Send an answer, and end its connection where the client does not take the next piece in time.

    The limit is ``--mmout-send-timeout``. Of an answer within another one the outer one counts the time.
    """
    if isinstance(send, _Timed):
        await answer(scope, receive, send)
        return
    # uvicorn's own method, where nobody's middleware has put another function around it. Its connection is aborted, as
    # uvicorn would log an exception out of the app with its traceback.
    connection: asyncio.Transport | None = getattr(getattr(receive, "__self__", None), "transport", None)
    try:
        await answer(scope, receive, _Timed(send, _limit(scope), connection))
    except CutOff as ended:
        logger.info("%s", ended)
        if connection is not None:
            connection.abort()  # close() would wait until all that was written is taken
            await asyncio.sleep(_TURN_S)


class CutOff(Exception):  # noqa: N818 - no fault: it ends the answer alone
    """Nothing more can be sent: the connection ends here, so that its client sees that the answer is not whole."""


@dataclass(frozen=True, slots=True)
class _Timed:
    """``send`` of a connection that ends in time, whatever its client does."""

    send: Send
    seconds: float
    connection: asyncio.Transport | None

    async def __call__(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self.seconds):
                await self.send(message)
        except TimeoutError:
            limit = f"{self.seconds:g} s ({flag('send_timeout')})"
            raise CutOff(f"a client took nothing of its answer for {limit}; its connection was ended") from None
        except RuntimeError:  # of a connection that was closed below, which its owner has not heard of
            if self.connection is None or not self.connection.is_closing():
                raise
            raise CutOff("a client closed its connection while its answer was sent") from None


def _limit(scope: Scope) -> float:
    """Seconds, as the server's options have them; the usual ones where its model has no processor."""
    options = getattr(getattr(getattr(scope.get("app"), "state", None), "mmout", None), "options", None)
    return (options if isinstance(options, ServingOptions) else ServingOptions()).send_timeout


async def discard(request: Request) -> None:
    """Read what a client still sends, for a moment, and throw it away, so that it sees why it is refused.

    A connection that is closed while its client is sending is reset, and the answer with it.
    """
    # Whoever waits for "100 Continue" has sent nothing yet, and is told to by the first look.
    if "100-continue" not in request.headers.get("expect", "").lower():
        await discard_rest(request)


async def discard_rest(request: Request) -> None:
    """As `discard`, of a client that is sending."""
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
