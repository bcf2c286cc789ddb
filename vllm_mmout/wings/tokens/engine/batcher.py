"""MediaBatcher: decodes media of all requests of an engine, those that are ready together in one forward."""

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
    """One medium on its way through the decoder."""

    medium: Any
    """A `Medium`, or with a state a piece of one."""
    params: OutputParams
    done: Callable[[MediaJob], None] | None
    """Called once, in whatever thread ends the job; None when it has ended or was cancelled."""
    state: Any = None
    """What the processor's ``begin`` has returned for a medium that comes in pieces; these are decoded one by one."""
    key: Hashable = None
    """Equal for media that can be decoded together."""
    outcome: Outcome = None
    since: float = 0.0
    """When it came, by ``time.monotonic``."""

    def cancel(self) -> None:
        """Let it end without telling anybody."""
        self.done = None

    def settle(self, outcome: Outcome) -> None:
        """End it with an object, or an exception."""
        done = self.done
        if done is not None:
            self.outcome = outcome
            self.done = None  # last: who sees that it has ended looks at its outcome
            try:
                done(self)
            except Exception:  # noqa: BLE001 - whoever is told: other media are of other requests
                logger.exception("a decoded medium could not be handed on")


@dataclass(slots=True, eq=False)
class _Turn:
    """A turn at the decoder: one job of the pool, and one forward."""

    jobs: Sequence[MediaJob] = ()
    taken: bool = False
    """Whether it takes no more of what waits."""


class MediaBatcher:
    """Runs a decoder in a thread of its own; ``timeout``: seconds that one forward may take."""

    def __init__(self, processor: TokenProcessor, timeout: float) -> None:
        self.calls = 0
        """Forwards so far."""
        self._processor = processor
        self._wait_s = min(processor.batch_wait_s, timeout / 2)  # it is part of the forward's time
        # Less than the limit: all media of a forward that passes it fail, though each alone had time enough.
        self._sizes = BatchSizes(processor.max_batch, 0.75 * timeout)
        self._pool = DecodePool(1, timeout)
        self._waiting: deque[MediaJob] = deque()
        self._turns = 0
        """Those that have not taken anything yet; never less than what waits."""
        self._lock = threading.Lock()
        self._more = threading.Condition(self._lock)
        self._closed = False
        self._name = type(processor).__name__
        self._said = False
        """Whether the log says that the decoder fails on several media."""

    def submit(
        self, medium: Medium | Any, params: OutputParams, done: Callable[[MediaJob], None], state: Any = None
    ) -> MediaJob:
        """Have a medium decoded, or a piece of one with its ``state``.

        ``done`` is called with its job, in any thread, also in this one.
        """
        job = MediaJob(medium, params, done, state, since=time.monotonic())
        try:
            job.key = self._processor.batch_key(medium) if state is None else object()
            hash(job.key)
        except Exception as error:  # noqa: BLE001 - an author's code: all it raises is that request's
            job.settle(self._failure(error))
            return job
        with self._lock:
            self._waiting.append(job)
            self._turns += 1
            self._more.notify_all()
        # As many turns as media: a turn that finds nothing, since one before it took several, ends at once.
        try:
            self._queue(_Turn())
        except BaseException:  # no thread could be started
            with self._lock:
                self._turns -= 1
                self._waiting = deque(one for one in self._waiting if one is not job)
            raise
        return job

    def close(self) -> None:
        """End the thread; what is not decoded fails. A second call does nothing."""
        if self._closed:
            return
        with self._lock:
            self._closed = True
            left, self._waiting = list(self._waiting), deque()
            self._more.notify_all()
        self._pool.close()
        for job in left:
            job.settle(AbortedError("the engine was shut down before the result was decoded"))

    def _queue(self, turn: _Turn) -> None:
        self._pool.submit(lambda: self._run(turn), lambda outcome: self._end(turn, outcome))

    def _run(self, turn: _Turn) -> list[Outcome]:
        """Decode media that go together; gives an outcome each, or none where each gets a turn of its own."""
        if not turn.taken:
            self._take(turn)
        if len(turn.jobs) > 1:
            return self._decode_together(turn.jobs)
        return [self._decode_alone(job) for job in turn.jobs]

    def _take(self, turn: _Turn) -> None:
        with self._lock:
            self._forget_cancelled()
            first = self._waiting[0] if self._waiting else None
            if first is not None and first.state is None and self._sizes.waits(first.key):
                self._wait(first)
                self._forget_cancelled()
            if turn.taken:  # it was over while it waited
                return
            turn.taken = True
            self._turns -= 1
            if self._waiting:
                turn.jobs = self._first_alike()

    def _wait(self, first: MediaJob) -> None:
        """Wait until there is a whole batch, or the first has waited long enough."""
        until = first.since + self._wait_s
        while not self._closed and self._alike(first) < self._processor.max_batch:
            left = until - time.monotonic()
            if left <= 0 or not self._more.wait(left):
                return

    def _first_alike(self) -> list[MediaJob]:
        """Take the oldest that waits, and what goes with it."""
        first = self._waiting[0]
        count = self._sizes.size(first.key, self._alike(first))
        taken = [job for job in self._waiting if job.key == first.key][:count]
        gone = set(map(id, taken))
        self._waiting = deque(job for job in self._waiting if id(job) not in gone)
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
        except BaseException as error:  # noqa: BLE001 - of several nobody knows whose fault it was: each alone says it
            self._sizes.failed(jobs[0].key)
            if not self._said:
                self._said = True
                logger.warning(
                    "%s failed on %d media at once, which are decoded one by one", self._name, len(jobs), exc_info=error
                )
            for job in jobs:
                self._queue(_Turn([job], taken=True))
            return []
        self._sizes.record(jobs[0].key, len(jobs), time.perf_counter() - started)
        if len(outputs) == len(jobs):
            return [self._checked(output, "decode_batch") for output in outputs]
        said = f"{self._name}.decode_batch returned {len(outputs)} outputs for {len(jobs)} media; return one a medium"
        return [DecodeError(said) for _ in jobs]

    def _decode_alone(self, job: MediaJob) -> Outcome:
        if job.done is None:
            return None
        started = time.perf_counter()
        self.calls += 1
        try:
            pieces = () if job.state is None else (job.state,)
            output = self._processor.decode(job.medium, job.params, *pieces)
        except BaseException as error:  # noqa: BLE001 - an author's code: all it raises is that request's
            return self._failure(error)
        if job.state is None:
            self._sizes.record(job.key, 1, time.perf_counter() - started)
        return self._checked(output, "decode")

    def _checked(self, output: Outcome, by: str) -> Outcome:
        if output is None:
            return DecodeError(f"{self._name}.{by} returned None; it must return an output object")
        return output

    def _end(self, turn: _Turn, outcome: Any) -> None:
        """Hand on what a turn has given; where it has failed as a whole (its time, a shutdown), to all of it."""
        if isinstance(outcome, BaseException):
            for job in self._of_failed(turn):
                job.settle(outcome)
            return
        for job, each in zip(turn.jobs, outcome, strict=False):
            job.settle(each)

    def _of_failed(self, turn: _Turn) -> Sequence[MediaJob]:
        """Whose failure that of a turn is; of one that has taken nothing that of media for which no turn is left."""
        with self._lock:
            if turn.taken:
                return turn.jobs
            turn.taken = True
            self._turns -= 1
            return [self._waiting.popleft() for _ in range(len(self._waiting) - self._turns)]

    def _failure(self, error: BaseException) -> MMOutError:
        if isinstance(error, MMOutError) and not isinstance(error, InputError):  # codes are nobody's input
            return error
        failure = DecodeError(f"{self._name} failed: {type_and_message(error)}")
        failure.__cause__ = error
        return failure
