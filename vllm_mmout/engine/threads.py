"""Threads: for tasks that may be cancelled, and those that give way to an engine."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial, wraps
from typing import TypeVar

from vllm_mmout.errors import as_exception
from vllm_mmout.log import logger

T = TypeVar("T")


async def in_thread(
    work: Callable[[], T], undo: Callable[[T], object] | None = None, stop: Callable[[], object] | None = None
) -> T:
    """Do work that blocks, off the event loop; if the caller is cancelled it goes on, and ``undo`` gets its result.

    If the caller is cancelled, ``stop`` is called, by which the work may learn to end early. A SystemExit or
    KeyboardInterrupt of the work is raised as a RequestError, since it would end the event loop.
    """
    working = asyncio.ensure_future(asyncio.to_thread(_contained, work))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        if stop is not None:
            stop()
        working.add_done_callback(partial(_abandoned, undo=undo))
        raise


def _contained(work: Callable[[], T]) -> T:
    try:
        return work()
    except (SystemExit, KeyboardInterrupt) as error:
        raise as_exception(error) from error


@asynccontextmanager
async def entered(manager: AbstractContextManager[T]) -> AsyncIterator[T]:
    """Enter and leave a context manager that blocks, off the event loop; left also where entering was cancelled."""
    value = await in_thread(manager.__enter__, lambda _: manager.__exit__(None, None, None))
    try:
        yield value
    finally:
        await asyncio.shield(asyncio.to_thread(manager.__exit__, None, None, None))


def _abandoned(working: asyncio.Future[T], undo: Callable[[T], object] | None) -> None:
    """Undo what nobody waits for any more; an error of the work is nobody's either."""
    if not working.cancelled() and working.exception() is None and undo is not None:
        asyncio.get_running_loop().run_in_executor(None, _undone, undo, working.result())


def _undone(undo: Callable[[T], object], result: T) -> None:
    try:
        undo(result)
    except Exception:  # noqa: BLE001 - nobody is left who could be told
        logger.exception("what a cancelled request had made could not be undone")


_NICE = 10
_LOWEST = 19


def background_thread(work: Callable[[], None], name: str) -> threading.Thread:
    """Make a daemon thread that gives way, as ``giving_way`` says; the caller starts it."""
    return threading.Thread(target=giving_way(work), name=f"mmout-{name}", daemon=True)


def giving_way(work: Callable[[], None]) -> Callable[[], None]:
    """Let the thread that runs ``work``, and those that it starts, give way to an engine on the same processors.

    An engine's worker is bound to some processors, this process to none: when it has more to do than the others can
    take, the system would let it wait and the worker wait alike. On a GPU nothing changes.
    """

    @wraps(work)
    def run() -> None:
        from vllm.platforms import current_platform

        if sys.platform == "linux" and current_platform.is_cpu():  # elsewhere the whole process would give way
            thread = threading.get_native_id()
            now = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, min(now + _NICE, _LOWEST))
        work()

    return run
