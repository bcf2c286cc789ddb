"""Thread pool that decodes results, with a time limit for each job and a fair share for each output processor."""

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
"""Longest wait for the threads to end when the pool is closed, in seconds."""
MAX_ABANDONED = 32
"""Maximum number of threads that hang in a job. When it is reached, the pool refuses all new jobs."""
_MIN_HANGING_LIMIT = 2
"""Limit on the hanging jobs of one output processor in a pool of one or two threads. In a larger pool, the limit is the
number of threads.

At the limit, new jobs of the processor are refused.
"""


class DecodeJob:
    """Job of a `DecodePool`, settled exactly once: by its result, an exception, its time limit or a cancellation."""

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
        """Whether the job has ended or was cancelled."""
        return self._settled

    def run(self) -> Outcome:
        """Call the job's function, and return its result or the exception that it raised."""
        work = self._work
        try:
            return None if work is None else work()  # a cancelled job lacks its work
        except BaseException as error:  # noqa: BLE001 - any error of a decoder, SystemExit too, fails only its own request
            return error

    def settle(self, outcome: Outcome) -> bool:
        """End the job, and pass its result or exception to the callback. Return False if it ended before."""
        on_done = self._end()
        if on_done is None:
            return False
        on_done(outcome)
        return True

    def cancel(self) -> bool:
        """End the job without calling its callback. The result of a running job is dropped.

        Return False if the job was settled before.
        """
        return self._end() is not None

    def _end(self) -> Callable[[Outcome], None] | None:
        """Mark the job as settled, and return its callback. Return None if it was settled before.

        The job drops its references to the request, which may itself refer to the job.
        """
        with self._lock:
            on_done, self._on_done = self._on_done, None
            self._work = None
            self._settled = True
        return on_done


class DecodePool:
    """Pool that decodes results on a fixed number of threads, with a time limit for each job.

    A job that exceeds its limit keeps its thread, and the pool starts another thread. While jobs of a processor hang,
    jobs of that processor run on at most half of the threads, so that jobs of other processors can run. A pool of one
    thread gets a second thread then. If as many jobs of a processor hang as the pool has threads, new jobs of the
    processor are refused until one of the hanging jobs ends.
    """

    def __init__(self, threads: int, timeout: float) -> None:
        self.threads = threads
        self.timeout = timeout
        self._jobs: queue.SimpleQueue[DecodeJob | None] = queue.SimpleQueue()
        self._lock = threading.RLock()  # written in C, so that an interrupt cannot leave it held
        self._changed = threading.Condition(self._lock)
        self._running: dict[threading.Thread, DecodeJob] = {}
        self._abandoned: dict[threading.Thread, DecodeJob] = {}
        self._postponed: deque[DecodeJob] = deque()
        """Jobs that wait because earlier jobs of their output processor hang. They are queued again when a running job
        ends or exceeds its time limit.
        """
        self._workers: list[threading.Thread] = []
        self._watchdog: threading.Thread | None = None
        self._closed = False

    def submit(
        self, work: Callable[[], Any], on_done: Callable[[Outcome], None], processors: Collection[str] = ()
    ) -> DecodeJob:
        """Queue a job.

        Args:
            work: function that does the work.
            on_done: callback that gets the result or the exception.
            processors: names of the output processors that the job uses.

        """
        job = DecodeJob(work, on_done, processors)
        self.queue(job)
        return job

    def queue(self, job: DecodeJob) -> None:
        """Queue a new job. If the pool refuses it, the job ends with the error at once."""
        with self._lock:  # until the job is queued, so that close() finds it
            refusal = self._admit() or self._refusal_of(job)
            if refusal is None:
                self._jobs.put(job)
        if refusal is not None:
            job.settle(refusal)

    def close(self) -> None:
        """End the threads. Queued and running jobs fail with an AbortedError.

        Idle threads have ended when this returns, because a thread that ends during the interpreter's shutdown inside
        torch's C++ code may abort the process.
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

    def _drain(self) -> list[DecodeJob]:
        with self._lock:
            jobs = [*self._postponed]
            self._postponed.clear()
        with suppress(queue.Empty):
            while (job := self._jobs.get_nowait()) is not None:
                jobs.append(job)
        return jobs

    def _admit(self) -> Exception | None:
        """Start missing threads. Return an error if the pool cannot accept a job. The caller must hold the lock."""
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
        if len(self._workers) < self._thread_target:
            self._start_worker()
        return None

    @property
    def _thread_target(self) -> int:
        """Number of threads to keep running, not counting threads that hang."""
        return max(self.threads, 2) if any(job.processors for job in self._abandoned.values()) else self.threads

    def _hanging(self, job: DecodeJob) -> int:
        """Count the hanging jobs of a job's output processor. A job hangs if it runs longer than its time limit.

        If ``job`` uses several processors, return the number for the processor with the most hanging jobs.
        """
        hanging = [abandoned.processors for abandoned in self._abandoned.values()]
        return max((sum(name in names for names in hanging) for name in job.processors), default=0)

    def _refusal_of(self, job: DecodeJob) -> DecodeError | None:
        """Return an error if ``job`` must be refused, because too many jobs of its output processor hang.

        Return None if the job can be accepted. The caller must hold the lock.
        """
        hanging = self._hanging(job)
        if hanging < max(self.threads, _MIN_HANGING_LIMIT):
            return None
        return DecodeError(
            f"{hanging} decodes of output processor {' or '.join(job.processors)} hang past their limit of"
            f" {self.timeout:g} s, and no further decode is started until one of them ends; give the decoder a time"
            " limit of its own, and restart the engine. Other output processors go on"
        )

    def _must_wait(self, job: DecodeJob) -> bool:
        """Return whether a job must wait because jobs of its output processor hang. The caller must hold the lock.

        Otherwise such jobs could occupy all threads, and jobs of other processors could not run.
        """
        beside = sum(self._hanging(running) > 0 for running in self._running.values())
        return self._hanging(job) > 0 and beside >= max(1, self._thread_target // 2)

    def _requeue_postponed(self) -> None:
        """Queue the postponed jobs again. The caller must hold the lock."""
        while self._postponed and not self._closed:
            self._jobs.put(self._postponed.popleft())

    def _start_worker(self) -> None:
        worker = background_thread(self._work, "decode")
        worker.start()
        self._workers.append(worker)  # after the start, so that a Ctrl-C in between does not count a missing thread

    def _work(self) -> None:
        thread = threading.current_thread()
        while (job := self._jobs.get()) is not None:
            if job.settled:
                del job  # keeps no request alive while this thread waits for its next job
                continue
            with self._lock:
                closed = self._closed  # if True, close() has not seen this job
                if not closed and self._must_wait(job) and not self._refusal_of(job):
                    self._postponed.append(job)
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
                if not ends and len(self._workers) > self._thread_target:
                    self._workers.remove(thread)
                    ends = True
                self._requeue_postponed()
            try:
                job.settle(outcome)
            except Exception:  # noqa: BLE001 - an error of the callback must not end this thread
                logger.exception("a decoded result could not be delivered")
            del job, outcome, refusal
            if ends:
                return

    def _watch(self) -> None:
        """Fail jobs that exceed their time limit, and replace their threads."""
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
                with suppress(RuntimeError):  # if the system cannot start a thread now, the next job tries again
                    while len(self._workers) < self._thread_target:
                        self._start_worker()
                self._requeue_postponed()
            for job in overdue.values():
                job.settle(
                    DecodeError(
                        f"decoding took longer than the limit of {self.timeout:g} s; make the decoder faster, or raise"
                        " the engine's option decode_timeout_s"
                    )
                )


def _shut_down() -> AbortedError:
    return AbortedError("the engine was shut down before the result was decoded")
