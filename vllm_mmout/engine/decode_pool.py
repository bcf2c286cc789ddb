"""DecodePool: the threads that decode, with a time limit for each job and room for all output processors."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, TypeAlias

from vllm_mmout.engine.threads import background_thread
from vllm_mmout.errors import AbortedError, DecodeError
from vllm_mmout.log import logger

Outcome: TypeAlias = Any

_ENDS_S = 1.0
"""How long threads that are to end are waited for."""
MAX_ABANDONED = 32
"""Threads that may hang at once before new jobs are refused."""
_LEAST_SHARE = 2
"""Threads that one processor may hang before its new jobs are refused, where the pool has fewer."""


class Job:
    """One piece of work; it is settled exactly once: by its result, its exception, its time limit, or cancellation."""

    __slots__ = ("_lock", "_on_done", "_settled", "_work", "deadline", "processors")

    def __init__(
        self, work: Callable[[], Any], on_done: Callable[[Outcome], None], processors: Collection[str] = ()
    ) -> None:
        self.processors = processors
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
    """Runs jobs on a fixed number of threads, with a time limit for each.

    A job that passes its limit keeps its thread, which is replaced. While jobs of a processor hang so, the jobs of such
    processors run on half of the threads, and a pool of one thread has a second one, so that there is room for the jobs
    of others. Where as many hang as the pool has threads, new jobs of their processor are refused until one comes back.
    """

    def __init__(self, threads: int, timeout: float) -> None:
        self.threads = threads
        self.timeout = timeout
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.RLock()  # of C: an interrupt can come between the lines of Condition's own `with`
        self._changed = threading.Condition(self._lock)
        self._running: dict[threading.Thread, Job] = {}
        self._abandoned: dict[threading.Thread, Job] = {}
        self._put_off: deque[Job] = deque()
        """Jobs of processors that hang, while others of theirs run."""
        self._workers: list[threading.Thread] = []
        self._watchdog: threading.Thread | None = None
        self._closed = False

    def submit(
        self, work: Callable[[], Any], on_done: Callable[[Outcome], None], processors: Collection[str] = ()
    ) -> Job:
        """Queue a job, of the output processors of these names."""
        job = Job(work, on_done, processors)
        with self._lock:  # until the job is queued, so that close() finds it
            refusal = self._admit() or self._refusal_of(job)
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
        with self._lock:
            jobs = [*self._put_off]
            self._put_off.clear()
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
        if len(self._workers) < self._wanted:
            self._start_worker()
        return None

    @property
    def _wanted(self) -> int:
        """Return the number of threads that wait for jobs or run them, but for those that hang."""
        return max(self.threads, 2) if any(job.processors for job in self._abandoned.values()) else self.threads

    def _hanging(self, job: Job) -> int:
        """Return how many jobs of a job's processor hang, of several processors the most."""
        named = [one.processors for one in self._abandoned.values()]
        return max((sum(name in names for names in named) for name in job.processors), default=0)

    def _refusal_of(self, job: Job) -> DecodeError | None:
        """Return why a job is not run, where its processor hangs all of its share. Under the lock."""
        hanging = self._hanging(job)
        if hanging < max(self.threads, _LEAST_SHARE):
            return None
        return DecodeError(
            f"{hanging} decodes of output processor {' or '.join(job.processors)} hang past their limit of"
            f" {self.timeout:g} s, and no more are begun until one of them ends; give the decoder a time limit of its"
            " own, and restart the engine. Other output processors go on"
        )

    def _waits(self, job: Job) -> bool:
        """Return whether a job leaves its thread to those of processors that do not hang. Under the lock."""
        beside = sum(self._hanging(one) > 0 for one in self._running.values())
        return self._hanging(job) > 0 and beside >= max(1, self._wanted // 2)

    def _put_back(self) -> None:
        """Queue again what was put off. Under the lock."""
        while self._put_off and not self._closed:
            self._jobs.put(self._put_off.popleft())

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
                if not closed and self._waits(job) and not self._refusal_of(job):
                    self._put_off.append(job)
                    del job
                    continue
                refusal = _shut_down() if closed else self._refusal_of(job)
                job.deadline = time.monotonic() + self.timeout
                self._running[thread] = job
                self._changed.notify_all()
            outcome = refusal or job.run()
            with self._lock:
                self._running.pop(thread, None)
                ends = self._abandoned.pop(thread, None) is not None
                if not ends and len(self._workers) > self._wanted:
                    self._workers.remove(thread)
                    ends = True
                self._put_back()
            try:
                job.settle(outcome)
            except Exception:  # noqa: BLE001 - whoever is told: it must not cost the pool its thread
                logger.exception("a decoded result could not be handed on")
            del job, outcome, refusal
            if ends:
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
                for thread, job in overdue.items():
                    del self._running[thread]
                    self._abandoned[thread] = job
                    self._workers.remove(thread)
                with suppress(RuntimeError):  # the system has no thread to spare: the next job starts it
                    while len(self._workers) < self._wanted:
                        self._start_worker()
                self._put_back()
            for job in overdue.values():
                job.settle(
                    DecodeError(
                        f"decoding took longer than the limit of {self.timeout:g} s; make the decoder faster, or raise"
                        " the engine's option decode_timeout_s"
                    )
                )


def _shut_down() -> AbortedError:
    return AbortedError("the engine was shut down before the result was decoded")
