"""Clients that go away: work for one ends at once, and nothing that was held for its answer stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from vllm_mmout.serving.sending import send_in_time

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

T = TypeVar("T")


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do work for a client, as long as it is there.

    Args:
        request: its request, whose body was read: what else comes is thrown away.
        work: cancelled, and waited for, when the client closes its connection.

    Raises:
        ClientDisconnect: it did.

    """
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


@asynccontextmanager
async def in_thread(manager: AbstractContextManager[T]) -> AsyncIterator[T]:
    """Enter and leave a context manager that blocks, off the event loop; left also where entering was cancelled."""
    entering = asyncio.ensure_future(asyncio.to_thread(manager.__enter__))
    try:
        value = await asyncio.shield(entering)
    except asyncio.CancelledError:  # the thread goes on
        entering.add_done_callback(lambda entered: _leave(manager, entered))
        raise
    try:
        yield value
    finally:
        await asyncio.shield(asyncio.to_thread(manager.__exit__, None, None, None))


def _leave(manager: AbstractContextManager[Any], entered: asyncio.Future[Any]) -> None:
    if not entered.cancelled() and entered.exception() is None:
        leaving = asyncio.get_running_loop().run_in_executor(None, manager.__exit__, None, None, None)
        leaving.add_done_callback(lambda left: left.exception())


class Held(Response):
    """An answer, and what is let go when it has been sent or its client has gone away.

    Args:
        answer: what is sent.
        held: closed then.

    """

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


class Slots:
    """How many requests are served at once.

    Args:
        count: so many.
        refusal: makes the error of one more.

    """

    def __init__(self, count: int, refusal: Callable[[int], Exception]) -> None:
        self.count = count
        self.taken = 0
        self._refusal = refusal

    def __enter__(self) -> None:
        """Take a place.

        Raises:
            Exception: there is none; what ``refusal`` made.

        """
        if self.taken >= self.count:
            raise self._refusal(self.count)
        self.taken += 1

    def __exit__(self, *_: object) -> None:
        self.taken -= 1
