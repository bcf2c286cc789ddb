"""Decode the pictures and sounds of all requests in one thread, in batches if possible."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_mmout.engine.decode_pool import DecodePool, Outcome
from vllm_mmout.errors import AbortedError, DecodeError, InputError, MMOutError, type_and_message
from vllm_mmout.log import logger
from vllm_mmout.params import OutputParams
from vllm_mmout.wings.tokens.engine.batch_sizes import BatchSizes
from vllm_mmout.wings.tokens.layouts.parser import Medium
from vllm_mmout.wings.tokens.processors.base import TokenProcessor


@dataclass(slots=True, eq=False)
class MediaJob:
    """A decoding job: one picture, one sound, or one chunk of a sound."""

    medium: Any
    """Codes of a picture or sound (`Medium`), or of one chunk of a sound (`SoundPiece`)."""
    params: OutputParams
    done: Callable[[MediaJob], None] | None
    """Callback for the finished job, called in any thread. None once it was called, or if the job was cancelled."""
    state: Any = None
    """Decoder state that is passed from one chunk of a sound to the next. None if a picture or sound is decoded as a
    whole."""
    key: Hashable = None
    """Batch key. Decoding jobs with equal keys can share a forward pass."""
    outcome: Outcome = None
    submitted_at: float = 0.0
    """Time when the job was submitted, in seconds of ``time.monotonic``."""

    def cancel(self) -> None:
        """Cancel the job without calling ``done``."""
        self.done = None

    def settle(self, outcome: Outcome) -> None:
        """End the job with ``outcome``, the decoded object or an exception, and call ``done``."""
        done = self.done
        if done is not None:
            self.outcome = outcome
            self.done = None  # set last: readers check done before they read outcome
            try:
                done(self)
            except Exception:  # noqa: BLE001 - an error in a callback must not affect other requests
                logger.exception("a decoded medium could not be delivered")


@dataclass(slots=True, eq=False)
class _DecoderTask:
    """Task of the decoder thread that decodes queued jobs together in one forward pass."""

    jobs: Sequence[MediaJob] = ()
    taken: bool = False
    """Whether this decoder task has taken its jobs from the queue. A task takes jobs only once."""


class MediaBatcher:
    """Decoder thread that decodes queued media in batches. ``timeout`` limits a forward pass, in seconds."""

    def __init__(self, processor: TokenProcessor, timeout: float) -> None:
        self.calls = 0
        """Number of calls to the output processor's ``decode`` and ``decode_batch`` so far."""
        self._processor = processor
        self._wait_s = min(processor.batch_wait_s, timeout / 2)  # waiting counts as time of the forward
        # Below the limit, as a forward that exceeds it fails for all its media, though each alone might be in time.
        self._sizes = BatchSizes(processor.max_batch, 0.75 * timeout)
        self._pool = DecodePool(1, timeout)
        self._waiting: deque[MediaJob] = deque()
        self._tasks_without_jobs = 0
        """Number of decoder tasks that have not taken jobs from the queue yet.

        The number is never less than the number of waiting jobs, so that no job is left behind."""
        self._lock = threading.Lock()
        self._more = threading.Condition(self._lock)
        self._closed = False
        self._name = type(processor).__name__
        self._has_warned = False
        """Whether a failed batch has already been logged."""

    def submit(
        self, medium: Medium | Any, params: OutputParams, done: Callable[[MediaJob], None], state: Any = None
    ) -> MediaJob:
        """Queue a picture, a sound, or a chunk of a sound for decoding. ``done`` is called with the finished job.

        A chunk has a ``state``, which the decoder keeps from one chunk of the sound to the next. ``done`` may be called
        in any thread, also in this one.
        """
        job = MediaJob(medium, params, done, state, submitted_at=time.monotonic())
        try:
            job.key = self._processor.batch_key(medium) if state is None else object()
            hash(job.key)
        except Exception as error:  # noqa: BLE001 - user code: its errors belong to this request
            job.settle(self._failure(error))
            return job
        with self._lock:
            self._waiting.append(job)
            self._tasks_without_jobs += 1
            self._more.notify_all()
        # One task per job: a task ends at once if earlier tasks have taken all jobs.
        try:
            self._queue(_DecoderTask())
        except BaseException:  # no thread could be started
            with self._lock:
                self._tasks_without_jobs -= 1
                self._waiting = deque(waiting_job for waiting_job in self._waiting if waiting_job is not job)
            raise
        return job

    def close(self) -> None:
        """End the decoder thread. Waiting and running jobs fail with an AbortedError. Further calls do nothing."""
        if self._closed:
            return
        with self._lock:
            self._closed = True
            unfinished, self._waiting = list(self._waiting), deque()
            self._more.notify_all()
        self._pool.close()
        for job in unfinished:
            job.settle(AbortedError("the engine was shut down before the result was decoded"))

    def _queue(self, task: _DecoderTask) -> None:
        self._pool.submit(lambda: self._run(task), lambda outcome: self._end(task, outcome))

    def _run(self, task: _DecoderTask) -> list[Outcome]:
        """Run a decoder task, which decodes one or more jobs. Return a result or an exception for each job.

        If the task has no jobs yet, it takes jobs from the queue. If decoding several jobs at once fails, queue a task
        for each job, and return an empty list.
        """
        if not task.taken:
            self._take(task)
        if len(task.jobs) > 1:
            return self._decode_together(task.jobs)
        return [self._decode_alone(job) for job in task.jobs]

    def _take(self, task: _DecoderTask) -> None:
        with self._lock:
            self._forget_cancelled()
            first = self._waiting[0] if self._waiting else None
            if first is not None and first.state is None and self._sizes.waits(first.key):
                self._wait(first)
                self._forget_cancelled()
            if task.taken:  # the task failed while it waited
                return
            task.taken = True
            self._tasks_without_jobs -= 1
            if self._waiting:
                task.jobs = self._take_batch()

    def _wait(self, first: MediaJob) -> None:
        """Wait until the batch is full, or the first job has waited for the maximum time."""
        until = first.submitted_at + self._wait_s
        while not self._closed and self._alike(first) < self._processor.max_batch:
            remaining = until - time.monotonic()
            if remaining <= 0 or not self._more.wait(remaining):
                return

    def _take_batch(self) -> list[MediaJob]:
        """Remove the oldest job, and jobs that can share its forward pass, from the queue. Return all of them."""
        first = self._waiting[0]
        count = self._sizes.size(first.key, self._alike(first))
        taken = [job for job in self._waiting if job.key == first.key][:count]
        taken_ids = set(map(id, taken))
        self._waiting = deque(job for job in self._waiting if id(job) not in taken_ids)
        return taken

    def _alike(self, first: MediaJob) -> int:
        return sum(job.key == first.key for job in self._waiting)

    def _forget_cancelled(self) -> None:
        self._waiting = deque(job for job in self._waiting if job.done is not None)

    def _decode_together(self, jobs: Sequence[MediaJob]) -> list[Outcome]:
        started = time.perf_counter()
        self.calls += 1
        try:
            outputs: list[Outcome] = list(self._processor.decode_batch([job.medium for job in jobs]))
        except BaseException as error:  # noqa: BLE001 - unknown which medium caused it, so each is decoded alone
            self._sizes.failed(jobs[0].key)
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "%s failed on %d media at once, so they are decoded one by one",
                    self._name,
                    len(jobs),
                    exc_info=error,
                )
            for job in jobs:
                self._queue(_DecoderTask([job], taken=True))
            return []
        self._sizes.record(jobs[0].key, len(jobs), time.perf_counter() - started)
        if len(outputs) == len(jobs):
            return [self._checked(output, "decode_batch") for output in outputs]
        message = (
            f"{self._name}.decode_batch returned {len(outputs)} outputs for {len(jobs)} media; return one per medium"
        )
        return [DecodeError(message) for _ in jobs]

    def _decode_alone(self, job: MediaJob) -> Outcome:
        if job.done is None:
            return None
        started = time.perf_counter()
        self.calls += 1
        try:
            pieces = () if job.state is None else (job.state,)
            output = self._processor.decode(job.medium, job.params, *pieces)
        except BaseException as error:  # noqa: BLE001 - user code: its errors belong to this request
            return self._failure(error)
        if job.state is None:
            self._sizes.record(job.key, 1, time.perf_counter() - started)
        return self._checked(output, "decode")

    def _checked(self, output: Outcome, by: str) -> Outcome:
        if output is None:
            return DecodeError(f"{self._name}.{by} returned None; it must return an output object")
        return output

    def _end(self, task: _DecoderTask, outcome: Any) -> None:
        """Finish each job of a decoder task with its result. If ``outcome`` is an exception, all jobs fail with it."""
        if isinstance(outcome, BaseException):
            for job in self._jobs_of_failed(task):
                job.settle(outcome)
            return
        for job, each in zip(task.jobs, outcome, strict=False):
            job.settle(each)

    def _jobs_of_failed(self, task: _DecoderTask) -> Sequence[MediaJob]:
        """Return the jobs that lack a result because a decoder task failed.

        If the task has taken no jobs yet, these are the waiting jobs for which no other task is left.
        """
        with self._lock:
            if task.taken:
                return task.jobs
            task.taken = True
            self._tasks_without_jobs -= 1
            return [self._waiting.popleft() for _ in range(len(self._waiting) - self._tasks_without_jobs)]

    def _failure(self, error: BaseException) -> MMOutError:
        if isinstance(error, MMOutError) and not isinstance(error, InputError):  # codes are not the user's input
            return error
        failure = DecodeError(f"{self._name} failed: {type_and_message(error)}")
        failure.__cause__ = error
        return failure
