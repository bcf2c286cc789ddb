"""Server-sent events of OpenAI's image routes: previews of an unfinished result, then the result.

A stream ends with the last ``completed`` event or with an error, without ``[DONE]``, as at OpenAI. If a client asks for
several processors, each has its own ``completed`` event, which names it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
from starlette.concurrency import iterate_in_threadpool
from starlette.responses import Response, StreamingResponse

from vllm_mmout.errors import AbortedError, DecodeError
from vllm_mmout.serving.errors import api_error, error_body, error_response, log_failure
from vllm_mmout.serving.response.responses import close_all, pieces, send_in_time

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from vllm_mmout.serving.response.responses import Part
    from vllm_mmout.serving.response.result_files import Encoded

_ALIVE = b":\n\n"
"""Empty comment that keeps a stream of server-sent events alive. Clients ignore it."""


@dataclass(frozen=True, slots=True)
class Event:
    """Server-sent event that is sent in parts. A part is bytes, or an encoded result that is closed after sending."""

    parts: tuple[Part, ...]


def partial_image(kind: str, index: int, picture: Encoded) -> Event:
    """Create the event that sends preview number ``index``. ``kind`` is the prefix of the event's name."""
    return _event(f"{kind}.partial_image", picture, {"partial_image_index": index})


def completed(kind: str, entry: Encoded, *, used: Mapping[str, Any], **own: Any) -> Event:
    """Create the event that sends the finished result ``entry``.

    ``kind`` is the prefix of the event's name, and ``used`` is the token usage. Other keyword arguments are added to
    the event's JSON.
    """
    return _event(f"{kind}.completed", entry, {"usage": used, **own})


@dataclass(frozen=True, slots=True)
class _NextEvent:
    """Queue entry with the next event to send, or with the exception that ends the stream."""

    event: Event | None
    failure: Exception | None = None
    last: bool = False
    """True for the last entry of the queue, after which the stream ends."""


class EventsResponse(StreamingResponse):
    """Streaming response of server-sent events. The headers are sent with the first event.

    A failure before the first event is a response with an error status. A later failure is an event ``error``, at which
    OpenAI's client raises. The iterator is closed when all is sent or the client is gone. An event that is None sends
    the headers and a comment, to show that the request runs.
    """

    def __init__(
        self,
        events: AsyncIterator[Event | None],
        request_id: str | None = None,
        *,
        media_type: str = "text/event-stream",
    ) -> None:
        super().__init__(
            iter(()), headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}, media_type=media_type
        )
        self._events = events
        self._request_id = request_id
        self._made: asyncio.Queue[_NextEvent] = asyncio.Queue(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        making = asyncio.create_task(self._produce())
        try:
            await send_in_time(super().__call__, scope, receive, send)
        finally:
            making.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait({making})
                while not self._made.empty():
                    await _close(self._made.get_nowait().event)

    async def stream_response(self, send: Send) -> None:
        """Send the headers together with the first event, then all other events."""
        started = False
        while True:
            made = await self._made.get()
            event, failure, ended = made.event, made.failure, made.last
            if failure is None and ended and not started:
                failure = DecodeError("the request ended without a result")
            if failure is not None and not started:
                answer = error_response(failure, self._request_id)
                answer.headers.update({name: self.headers[name] for name in ("x-request-id",) if name in self.headers})
                await _send_whole(send, answer)
                return
            if not started:
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                started = True
            if failure is not None:
                await self.send_failure(send, failure)
            elif event is not None:
                await _send_event(send, event)
            elif not ended:
                await _send_body(send, _ALIVE)
            if ended:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return

    async def send_failure(self, send: Send, failure: Exception) -> None:
        """Send an error event for a request that failed after its first event was sent."""
        known = api_error(failure, self._request_id)
        log_failure(self._request_id or "an answer of events", known.status, known.message)
        body = json.dumps(error_body(known)).encode()
        await _send_body(send, b"event: error\ndata: " + body + b"\n\n")

    async def _produce(self) -> None:
        """Put the response's events into the queue, then an entry that ends the stream.

        This runs in a task of its own, which is cancelled only once. If the client disconnects, starlette cancels the
        sending task at every ``await``, which would interrupt cleanup.
        """
        failure: Exception | None = None
        try:
            try:
                async for event in self._events:
                    await self._offer(event)
            finally:
                close = getattr(self._events, "aclose", None)
                if close is not None:
                    await close()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            failure = AbortedError("the request was cancelled by the server")
        except Exception as error:  # noqa: BLE001 - the error is the answer to this request
            failure = error
        await self._made.put(_NextEvent(None, failure, last=True))

    async def _offer(self, event: Event | None) -> None:
        try:
            await self._made.put(_NextEvent(event))
        except asyncio.CancelledError:
            await _close(event)
            raise


def _event(name: str, entry: Encoded, own: dict[str, Any]) -> Event:
    fields = {
        "type": name,
        "created_at": int(time.time()),
        "background": entry.background or "auto",
        "output_format": entry.format,
        "quality": "auto",
        "size": entry.size or "auto",
        **own,
    }
    head = json.dumps(fields, separators=(",", ":")).encode()[:-1]
    return Event((b"event: " + name.encode() + b"\ndata: " + head + b',"b64_json":"', entry, b'"}\n\n'))


async def _send_event(send: Send, event: Event) -> None:
    try:
        async for piece in iterate_in_threadpool(pieces(event.parts, as_text=True)):
            await _send_body(send, piece)
    finally:
        await close_all(event.parts)


async def _close(event: Event | None) -> None:
    if event is not None:
        await close_all(event.parts)


async def _send_body(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _send_whole(send: Send, answer: Response) -> None:
    await send({"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers})
    await send({"type": "http.response.body", "body": answer.body})
