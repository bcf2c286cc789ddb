"""Threads: for tasks that may be cancelled, those that give way to an engine, and the pool that decodes."""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from functools import partial, wraps
from typing import Any, TypeAlias, TypeVar

from vllm_mmout.errors import AbortedError, DecodeError
from vllm_mmout.log import logger

T = TypeVar("T")


async def in_thread(work: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
    """Do work that blocks, off the event loop; if the caller is cancelled it goes on, and ``undo`` gets its result."""
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        working.add_done_callback(partial(_abandoned, undo=undo))
        raise


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


Outcome: TypeAlias = Any

_ENDS_S = 1.0
"""How long threads that are to end are waited for."""
MAX_ABANDONED = 32
"""Threads that may hang at once before new jobs are refused."""


class Job:
    """One piece of work; it is settled exactly once: by its result, its exception, its time limit, or cancellation."""

    __slots__ = ("_lock", "_on_done", "_settled", "_work", "deadline")

    def __init__(self, work: Callable[[], Any], on_done: Callable[[Outcome], None]) -> None:
        self._work: Callable[[], Any] | None = work
        self._on_done: Callable[[Outcome], None] | None = on_done
        self.deadline = 0.0
        self._settled = False
        self._lock = threading.Lock()

    @property
    def settled(self) -> bool:
        """Whether the job has ended, for whoever waits for it."""
        return self._settled

    def run(self) -> Outcome:
        """Do the work; what it raises is the outcome."""
        work = self._work
        try:
            return None if work is None else work()  # none: it was cancelled meanwhile
        except BaseException as error:  # noqa: BLE001 - turns whatever a decoder raises (SystemExit too) into its request's error
            return error

    def settle(self, outcome: Outcome) -> bool:
        """End the job and hand on the outcome, unless it has ended before."""
        on_done = self._end()
        if on_done is None:
            return False
        on_done(outcome)
        return True

    def cancel(self) -> bool:
        """End the job without telling anybody; the result of a running one is thrown away."""
        return self._end() is not None

    def _end(self) -> Callable[[Outcome], None] | None:
        """Whom to tell, once; the job then keeps nothing of its request, which may know the job."""
        with self._lock:
            on_done, self._on_done = self._on_done, None
            self._work = None
            self._settled = True
        return on_done


class DecodePool:
    """Runs jobs on a fixed number of threads, with a time limit for each."""

    def __init__(self, threads: int, timeout: float) -> None:
        self.threads = threads
        self.timeout = timeout
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.RLock()  # of C: an interrupt can come between the lines of Condition's own `with`
        self._changed = threading.Condition(self._lock)
        self._running: dict[threading.Thread, Job] = {}
        self._abandoned: set[threading.Thread] = set()
        self._workers: list[threading.Thread] = []
        self._watchdog: threading.Thread | None = None
        self._closed = False

    def submit(self, work: Callable[[], Any], on_done: Callable[[Outcome], None]) -> Job:
        """Queue a job."""
        job = Job(work, on_done)
        with self._lock:  # until the job is queued, so that close() finds it
            refusal = self._admit()
            if refusal is None:
                self._jobs.put(job)
        if refusal is not None:
            job.settle(refusal)
        return job

    def close(self) -> None:
        """End the threads; queued and running jobs end with an AbortedError.

        Threads that decode nothing have ended when this returns: one that ends together with the interpreter, beneath
        torch's C++, may abort it.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            running = dict(self._running)
            self._changed.notify_all()
        for job in [*running.values(), *self._drain()]:
            job.settle(_shut_down())
        for _ in self._workers:
            self._jobs.put(None)
        deadline = time.monotonic() + _ENDS_S
        for worker in self._workers:
            if worker not in running and worker is not threading.current_thread():
                worker.join(max(0.0, deadline - time.monotonic()))

    def _drain(self) -> list[Job]:
        jobs = []
        with suppress(queue.Empty):
            while (job := self._jobs.get_nowait()) is not None:
                jobs.append(job)
        return jobs

    def _admit(self) -> Exception | None:
        """Start what threads are missing; why no job can be taken, if so. Under the lock."""
        if self._closed:
            return AbortedError("the engine was shut down; start a new one")
        if len(self._abandoned) >= MAX_ABANDONED:
            return DecodeError(
                f"{len(self._abandoned)} decodes hang past their limit of {self.timeout:g} s and hold threads;"
                " restart the engine, and give the decoder a time limit of its own"
            )
        if self._watchdog is None:
            watchdog = threading.Thread(target=self._watch, name="mmout-watchdog", daemon=True)
            watchdog.start()
            self._watchdog = watchdog
        if len(self._workers) < self.threads:
            self._start_worker()
        return None

    def _start_worker(self) -> None:
        worker = background_thread(self._work, "decode")
        worker.start()
        self._workers.append(worker)  # after the start: a Ctrl-C between the two costs no thread

    def _work(self) -> None:
        thread = threading.current_thread()
        while (job := self._jobs.get()) is not None:
            if job.settled:
                del job  # while this thread waits for the next one, it must keep nothing of a request alive
                continue
            with self._lock:
                closed = self._closed  # then close() has not seen this job
                job.deadline = time.monotonic() + self.timeout
                self._running[thread] = job
                self._changed.notify_all()
            outcome = _shut_down() if closed else job.run()
            with self._lock:
                self._running.pop(thread, None)
                replaced = thread in self._abandoned
                self._abandoned.discard(thread)
            try:
                job.settle(outcome)
            except Exception:  # noqa: BLE001 - whoever is told: it must not cost the pool its thread
                logger.exception("a decoded result could not be handed on")
            del job, outcome
            if replaced:
                return

    def _watch(self) -> None:
        """Settle jobs that run past their limit and replace their threads."""
        while True:
            with self._lock:
                if self._closed:
                    return
                now = time.monotonic()
                overdue = {thread: job for thread, job in self._running.items() if job.deadline <= now}
                if not overdue:
                    first = min((job.deadline for job in self._running.values()), default=None)
                    self._changed.wait(None if first is None else max(first - now, 0.001))
                    continue
                for thread in overdue:
                    del self._running[thread]
                    self._abandoned.add(thread)
                    self._workers.remove(thread)
                    with suppress(RuntimeError):  # the system has no thread to spare: the next job starts it
                        self._start_worker()
            for job in overdue.values():
                job.settle(
                    DecodeError(
                        f"decoding took longer than the limit of {self.timeout:g} s; make the decoder faster, or raise"
                        " the engine's option decode_timeout_s"
                    )
                )


def _shut_down() -> AbortedError:
    return AbortedError("the engine was shut down before the result was decoded")
