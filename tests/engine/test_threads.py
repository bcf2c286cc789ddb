"""Work in threads whose task is cancelled: the thread goes on, and nothing of what it has made is left."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import contextmanager

import pytest

pytest.importorskip("vllm", reason="the log is vLLM's")

from vllm_mmout.engine.threads import entered, in_thread
from vllm_mmout.errors import RequestError

pytestmark = pytest.mark.engine


class Step:
    """Something that blocks until it is let go, and what becomes of it."""

    def __init__(self):
        self.begun, self.free, self.undone = threading.Event(), threading.Event(), threading.Event()
        self.fails = None

    def work(self):
        self.begun.set()
        assert self.free.wait(10)
        if self.fails is not None:
            raise self.fails
        return "made"

    def undo(self, made):
        assert made == "made"
        self.undone.set()


async def cancelled(step, work):
    """Cancel a task in the middle of its work, then let the work go on to its end."""
    task = asyncio.create_task(work)
    await asyncio.to_thread(step.begun.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not step.undone.is_set()
    step.free.set()
    return await asyncio.to_thread(step.undone.wait, 0.5 if step.fails is not None else 10)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_work_ends_no_event_loop(error):
    """A task that raises a SystemExit would end its loop, and the server with it: it raises a RequestError."""
    step = Step()
    step.free.set()
    step.fails = error

    async def wait():
        with pytest.raises(RequestError, match=type(error).__name__):
            await in_thread(step.work, step.undo)
        return "the loop goes on"

    assert asyncio.run(wait()) == "the loop goes on"


def test_the_result_or_the_error_comes_back():
    """Nothing is undone where somebody gets what was made."""
    step = Step()
    step.free.set()
    assert asyncio.run(in_thread(step.work, step.undo)) == "made"
    step.fails = KeyError("why")
    with pytest.raises(KeyError, match="why"):
        asyncio.run(in_thread(step.work, step.undo))
    assert not step.undone.is_set()


def test_what_a_cancelled_task_has_made_is_undone():
    """``undo`` runs in another thread once the work is done; ``stop`` is called at once."""
    step, told = Step(), threading.Event()
    assert asyncio.run(cancelled(step, in_thread(step.work, step.undo, told.set)))
    assert told.is_set()


def test_work_that_fails_for_nobody_is_silent(caplog):
    """There is nothing to undo, and asyncio has no error that was never looked at."""
    step = Step()
    step.fails = KeyError("nobody asks")
    with caplog.at_level(logging.ERROR):
        assert not asyncio.run(cancelled(step, in_thread(step.work, step.undo)))
    assert not caplog.records


def test_a_context_that_is_entered_too_late_is_left():
    """Also where its task was cancelled while it was entered."""
    step = Step()

    @contextmanager
    def context():
        step.work()
        try:
            yield "made"
        finally:
            step.undone.set()

    async def use():
        async with entered(context()) as value:
            assert value == "made"

    assert asyncio.run(cancelled(step, use()))
    step.undone.clear()
    asyncio.run(use())  # which goes through at once
    assert step.undone.is_set()
