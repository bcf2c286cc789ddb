"""Run blocking work in threads. Async callers may be cancelled meanwhile, and threads can get a low CPU priority."""

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
    """Run blocking work in a thread, and return its result. If the caller is cancelled, end the work and undo it.

    If the caller is cancelled, ``stop`` is called, which may end the work early. The work goes on until it ends, and
    ``undo`` is then called with its result. A SystemExit or KeyboardInterrupt of the work would end the event loop, so
    it is raised as a RequestError.
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
    """Enter and exit a blocking context manager in threads. The manager is exited even if the caller is cancelled."""
    value = await in_thread(manager.__enter__, lambda _: manager.__exit__(None, None, None))
    try:
        yield value
    finally:
        await asyncio.shield(asyncio.to_thread(manager.__exit__, None, None, None))


def _abandoned(working: asyncio.Future[T], undo: Callable[[T], object] | None) -> None:
    """Clean up after work whose caller was cancelled. Call ``undo`` with the result, unless the work failed."""
    if not working.cancelled() and working.exception() is None and undo is not None:
        asyncio.get_running_loop().run_in_executor(None, _undone, undo, working.result())


def _undone(undo: Callable[[T], object], result: T) -> None:
    try:
        undo(result)
    except Exception:  # noqa: BLE001 - the caller was cancelled, so the error can only be logged
        logger.exception("cleaning up after a cancelled request failed")


_NICE = 10
"""Increase of a background thread's nice value, which lowers the thread's priority."""
_LOWEST = 19
"""Nice value of the lowest CPU priority. A larger nice value means a lower priority."""


def background_thread(work: Callable[[], None], name: str) -> threading.Thread:
    """Return a daemon thread that runs ``work`` with low CPU priority. The caller must start the thread."""
    return threading.Thread(target=giving_way(work), name=f"mmout-{name}", daemon=True)


def giving_way(work: Callable[[], None]) -> Callable[[], None]:
    """Wrap ``work`` so that its thread has low CPU priority.

    An engine that computes on the CPU has its own cores, and this process may use them too. An engine on a GPU needs a
    core to start the GPU's kernels in time. If this process has more work than the other cores can take, the system
    would otherwise share the engine's cores equally between both. The threads that ``work`` starts inherit the
    priority.
    """

    @wraps(work)
    def run() -> None:
        if sys.platform == "linux":  # other systems set the priority per process, not per thread
            thread = threading.get_native_id()
            nice = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, min(nice + _NICE, _LOWEST))
        work()

    return run
