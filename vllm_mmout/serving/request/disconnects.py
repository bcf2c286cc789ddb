"""Clients that go away, or take nothing of their answer: their work ends, and nothing is held for them for long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from vllm_mmout.engine.log import logger
from vllm_mmout.serving.options import ServingOptions, flag

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Message, Receive, Scope, Send

T = TypeVar("T")

_TURN_S: Final = 0.01
"""A turn of the event loop, with which a connection that was ended is lost."""


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
    except _Ended as ended:
        logger.info("%s", ended)
        if connection is not None:
            connection.abort()  # close() would wait until all that was written is taken
            await asyncio.sleep(_TURN_S)


class _Ended(Exception):  # noqa: N818 - no fault: it ends the answer alone
    """Nothing more can be sent."""


class _Timed:
    """``send`` of a connection that ends in time, whatever its client does."""

    def __init__(self, send: Send, seconds: float, connection: asyncio.Transport | None) -> None:
        self._send = send
        self._seconds = seconds
        self._connection = connection

    async def __call__(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await self._send(message)
        except TimeoutError:
            limit = f"{self._seconds:g} s ({flag('send_timeout')})"
            raise _Ended(f"a client took nothing of its answer for {limit}; its connection was ended") from None
        except RuntimeError:  # of a connection that was closed below, which its owner has not heard of
            if self._connection is None or not self._connection.is_closing():
                raise
            raise _Ended("a client closed its connection while its answer was sent") from None


def _limit(scope: Scope) -> float:
    """Seconds, as the server's options have them; the usual ones where its model has no processor."""
    service = getattr(getattr(scope.get("app"), "state", None), "mmout", None)
    options = getattr(service, "options", None)
    return (options if isinstance(options, ServingOptions) else ServingOptions()).send_timeout
