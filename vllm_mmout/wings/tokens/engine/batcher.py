"""MediaBatcher: decodes the pictures and sounds of all requests, several in one forward pass if possible."""

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
    """A picture or sound, or a piece of a sound, that is submitted for decoding."""

    medium: Any
    """Codes of a picture or sound (`Medium`), or of a piece of a sound (`SoundPiece`) if ``state`` is set."""
    params: OutputParams
    done: Callable[[MediaJob], None] | None
    """Callback, called once in the thread that ends the job. None once the job has ended or was cancelled."""
    state: Any = None
    """State of the decoder between the pieces of a sound, or None without pieces. Pieces are decoded one by one."""
    key: Hashable = None
    """Batch key. Jobs with equal keys can be decoded in one forward pass."""
    outcome: Outcome = None
    since: float = 0.0
    """Time of submission, by ``time.monotonic``."""

    def cancel(self) -> None:
        """Cancel the job. ``done`` will not be called."""
        self.done = None

    def settle(self, outcome: Outcome) -> None:
        """End the job with an object or an exception, and call ``done``."""
        done = self.done
        if done is not None:
            self.outcome = outcome
            self.done = None  # set last: readers check done before they read outcome
            try:
                done(self)
            except Exception:  # noqa: BLE001 - an error in a callback must not affect other requests
                logger.exception("a decoded medium could not be delivered")


@dataclass(slots=True, eq=False)
class _DecoderForward:
    """A task for the decoder's thread: the jobs to decode in one forward pass."""

    jobs: Sequence[MediaJob] = ()
    taken: bool = False
    """Whether the task has already taken its jobs from the queue of waiting jobs. A task does this only once."""


class MediaBatcher:
    """A batcher that runs a decoder in a thread. ``timeout`` is the time limit of one forward pass, in seconds."""

    def __init__(self, processor: TokenProcessor, timeout: float) -> None:
        self.calls = 0
        """Number of forward passes so far."""
        self._processor = processor
        self._wait_s = min(processor.batch_wait_s, timeout / 2)  # waiting counts as time of the forward
        # Below the limit, as a forward that exceeds it fails for all its media, though each alone might be in time.
        self._sizes = BatchSizes(processor.max_batch, 0.75 * timeout)
        self._pool = DecodePool(1, timeout)
        self._waiting: deque[MediaJob] = deque()
        self._turns = 0
        """Number of tasks that have not taken jobs from the queue yet. Never less than the number of waiting jobs."""
        self._lock = threading.Lock()
        self._more = threading.Condition(self._lock)
        self._closed = False
        self._name = type(processor).__name__
        self._said = False
        """Whether a failed forward pass with several pictures or sounds has been logged."""

    def submit(
        self, medium: Medium | Any, params: OutputParams, done: Callable[[MediaJob], None], state: Any = None
    ) -> MediaJob:
        """Submit a picture or sound for decoding, or a piece of a sound.

        A piece has a ``state``, which the decoder keeps between the pieces of the sound. ``done`` is called with the
        job in any thread, possibly in this one.
        """
        job = MediaJob(medium, params, done, state, since=time.monotonic())
        try:
            job.key = self._processor.batch_key(medium) if state is None else object()
            hash(job.key)
        except Exception as error:  # noqa: BLE001 - user code: its errors belong to this request
            job.settle(self._failure(error))
            return job
        with self._lock:
            self._waiting.append(job)
            self._turns += 1
            self._more.notify_all()
        # One task per job: a task ends at once if earlier tasks have taken all jobs.
        try:
            self._queue(_DecoderForward())
        except BaseException:  # no thread could be started
            with self._lock:
                self._turns -= 1
                self._waiting = deque(waiting_job for waiting_job in self._waiting if waiting_job is not job)
            raise
        return job

    def close(self) -> None:
        """End the decoder's thread. Jobs that are not decoded yet fail. A second call does nothing."""
        if self._closed:
            return
        with self._lock:
            self._closed = True
            unfinished, self._waiting = list(self._waiting), deque()
            self._more.notify_all()
        self._pool.close()
        for job in unfinished:
            job.settle(AbortedError("the engine was shut down before the result was decoded"))

    def _queue(self, turn: _DecoderForward) -> None:
        self._pool.submit(lambda: self._run(turn), lambda outcome: self._end(turn, outcome))

    def _run(self, turn: _DecoderForward) -> list[Outcome]:
        """Decode the jobs of a task, and return a result or an exception for each.

        If decoding several jobs at once fails, queue a task for each of them, and return an empty list.
        """
        if not turn.taken:
            self._take(turn)
        if len(turn.jobs) > 1:
            return self._decode_together(turn.jobs)
        return [self._decode_alone(job) for job in turn.jobs]

    def _take(self, turn: _DecoderForward) -> None:
        with self._lock:
            self._forget_cancelled()
            first = self._waiting[0] if self._waiting else None
            if first is not None and first.state is None and self._sizes.waits(first.key):
                self._wait(first)
                self._forget_cancelled()
            if turn.taken:  # the task failed while it waited
                return
            turn.taken = True
            self._turns -= 1
            if self._waiting:
                turn.jobs = self._first_alike()

    def _wait(self, first: MediaJob) -> None:
        """Wait until there is a full batch, or the first job has waited long enough."""
        until = first.since + self._wait_s
        while not self._closed and self._alike(first) < self._processor.max_batch:
            remaining = until - time.monotonic()
            if remaining <= 0 or not self._more.wait(remaining):
                return

    def _first_alike(self) -> list[MediaJob]:
        """Remove and return the oldest waiting job, with the jobs that can be decoded together with it."""
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
            if not self._said:
                self._said = True
                logger.warning(
                    "%s failed on %d media at once, so they are decoded one by one",
                    self._name,
                    len(jobs),
                    exc_info=error,
                )
            for job in jobs:
                self._queue(_DecoderForward([job], taken=True))
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

    def _end(self, turn: _DecoderForward, outcome: Any) -> None:
        """End the jobs of a task with their results. If the task failed (time limit, shutdown), all its jobs fail."""
        if isinstance(outcome, BaseException):
            for job in self._of_failed(turn):
                job.settle(outcome)
            return
        for job, each in zip(turn.jobs, outcome, strict=False):
            job.settle(each)

    def _of_failed(self, turn: _DecoderForward) -> Sequence[MediaJob]:
        """Return the jobs that fail because their task failed.

        If the task has taken no jobs yet, these are the waiting jobs for which no other task is left.
        """
        with self._lock:
            if turn.taken:
                return turn.jobs
            turn.taken = True
            self._turns -= 1
            return [self._waiting.popleft() for _ in range(len(self._waiting) - self._turns)]

    def _failure(self, error: BaseException) -> MMOutError:
        if isinstance(error, MMOutError) and not isinstance(error, InputError):  # codes are not the user's input
            return error
        failure = DecodeError(f"{self._name} failed: {type_and_message(error)}")
        failure.__cause__ = error
        return failure
