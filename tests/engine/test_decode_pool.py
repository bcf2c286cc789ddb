"""The decode pool: every job ends exactly once, and no job takes another's thread away for good."""

from __future__ import annotations

import gc
import queue
import threading
import time
import weakref

import pytest

from vllm_mmout.engine import decode_pool
from vllm_mmout.engine.decode_pool import DecodePool
from vllm_mmout.errors import AbortedError, DecodeError

pytestmark = pytest.mark.engine
LONG = 60
"""Seconds that nothing here takes."""


@pytest.fixture
def make():
    """Makes pools that are closed at the end, and an event that lets hanging jobs go then."""
    pools = []

    def make(threads, timeout=LONG):
        pools.append(DecodePool(threads, timeout))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


@pytest.fixture
def release():
    """An event for jobs to wait for, set at the end so that no thread outlives its test."""
    event = threading.Event()
    yield event
    event.set()


def until(condition, what):
    """Wait for a condition."""
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.002)


def outcomes():
    """A queue of what jobs ended with; its ``put`` is an ``on_done``."""
    return queue.Queue()


def hanging(release, started=None):
    """A job that hangs until it is let go."""

    def work():
        if started is not None:
            started.set()
        release.wait(LONG)
        return "late"

    return work


def test_a_job_ends_with_its_result(make):
    """What the work returns is handed on, once."""
    done = outcomes()
    job = make(1).submit(lambda: "result", done.put)

    assert done.get(timeout=LONG) == "result"
    assert job.settled
    assert done.empty()


def test_a_job_ends_with_its_exception(make):
    """What the work raises is handed on as the same object, and the thread goes on."""
    pool, done, error = make(1), outcomes(), ValueError("broken")

    def fail():
        raise error

    pool.submit(fail, done.put)
    pool.submit(lambda: "next", done.put)

    assert done.get(timeout=LONG) is error
    assert done.get(timeout=LONG) == "next"


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_job_that_wants_to_end_its_thread_ends_itself_alone(make, error):
    """An exception that is no Exception is an outcome like any other."""
    pool, done = make(1), outcomes()

    def leave():
        raise error

    pool.submit(leave, done.put)
    pool.submit(threading.current_thread, done.put)
    pool.submit(threading.current_thread, done.put)

    assert isinstance(done.get(timeout=LONG), error)
    assert done.get(timeout=LONG) is done.get(timeout=LONG)


def test_jobs_of_one_thread_run_in_the_order_in_which_they_came(make):
    """One thread is a queue."""
    pool, done = make(1), outcomes()
    for number in range(20):
        pool.submit(lambda number=number: number, done.put)

    assert [done.get(timeout=LONG) for _ in range(20)] == list(range(20))


def test_no_more_jobs_run_at_once_than_there_are_threads(make, release):
    """The third job of a pool of two waits, and runs when one of them ends."""
    pool, done = make(2), outcomes()
    started = [threading.Event() for _ in range(3)]
    for event in started:
        pool.submit(hanging(release, event), done.put)
    until(lambda: started[0].is_set() and started[1].is_set(), "two jobs run")

    assert len(pool._running) == 2
    assert not started[2].is_set()
    release.set()
    assert [done.get(timeout=LONG) for _ in range(3)] == ["late"] * 3


def test_a_job_over_its_limit_fails_and_its_thread_is_replaced(make, release):
    """Hanging jobs fail with a DecodeError that names the limit and the option; the jobs behind them run."""
    pool, hung, good = make(2, timeout=0.2), outcomes(), outcomes()
    for _ in range(4):
        pool.submit(hanging(release), hung.put)
    for number in range(4):
        pool.submit(lambda number=number: number, good.put)

    assert sorted(good.get(timeout=LONG) for _ in range(4)) == [0, 1, 2, 3]
    for _ in range(4):
        error = hung.get(timeout=LONG)
        assert isinstance(error, DecodeError)
        assert "0.2 s" in str(error)
        assert "decode_timeout_s" in str(error)


def test_a_late_result_is_thrown_away_and_its_thread_ends(make, release):
    """A job that has failed at its limit is not heard of again, and the pool is back at its number of threads."""
    pool, done = make(1, timeout=0.1), outcomes()
    before = set(threading.enumerate())
    pool.submit(hanging(release), done.put)
    assert isinstance(done.get(timeout=LONG), DecodeError)

    release.set()
    until(lambda: not pool._abandoned, "the hanging thread has come back")
    until(lambda: len(set(threading.enumerate()) - before) == 2, "one thread and the watchdog are left")
    pool.submit(lambda: "next", done.put)
    assert done.get(timeout=LONG) == "next"
    assert done.empty()


def test_the_limit_counts_from_the_start_of_a_job(make):
    """The time that a job waits for a thread is not held against it."""
    pool, done = make(1, timeout=1), outcomes()
    for _ in range(8):
        pool.submit(lambda: time.sleep(0.15), done.put)

    assert [done.get(timeout=LONG) for _ in range(8)] == [None] * 8


def test_a_queued_job_that_is_cancelled_never_runs(make, release):
    """It is passed over, and nobody is told."""
    pool, done, ran = make(1), outcomes(), threading.Event()
    pool.submit(hanging(release), done.put)
    job = pool.submit(ran.set, done.put)

    assert job.cancel()
    release.set()
    pool.submit(lambda: "next", done.put)
    assert [done.get(timeout=LONG), done.get(timeout=LONG)] == ["late", "next"]
    assert not ran.is_set()


def test_a_running_job_that_is_cancelled_is_not_heard_of(make, release):
    """Its thread goes on to the next job; its result is thrown away."""
    pool, done, started = make(1), outcomes(), threading.Event()
    job = pool.submit(hanging(release, started), done.put)
    assert started.wait(LONG)

    assert job.cancel()
    assert not job.cancel()
    release.set()
    pool.submit(lambda: "next", done.put)
    assert done.get(timeout=LONG) == "next"
    assert done.empty()


def test_a_cancelled_job_that_hangs_loses_its_thread_too(make, release):
    """Cancelling does not switch the limit off: those behind a hanging decoder run all the same."""
    pool, done, started = make(1, timeout=0.2), outcomes(), threading.Event()
    job = pool.submit(hanging(release, started), done.put)
    assert started.wait(LONG)
    job.cancel()

    pool.submit(lambda: "next", done.put)
    assert done.get(timeout=LONG) == "next"


def test_a_job_is_settled_once(make, release):
    """Only the first end counts."""
    done, started = outcomes(), threading.Event()
    job = make(1).submit(hanging(release, started), done.put)
    assert started.wait(LONG)

    assert job.settle("first")
    assert not job.settle("second")
    assert not job.cancel()
    release.set()
    assert done.get(timeout=LONG) == "first"
    assert done.empty()


def test_close_fails_what_runs_and_what_waits(make, release):
    """Every job that has not ended ends with an AbortedError; threads go when their job lets them."""
    before = set(threading.enumerate())
    pool, done, started = make(1), outcomes(), threading.Event()
    pool.submit(hanging(release, started), done.put)
    pool.submit(hanging(release), done.put)
    pool.submit(hanging(release), done.put)
    assert started.wait(LONG)

    pool.close()
    assert all(isinstance(done.get(timeout=LONG), AbortedError) for _ in range(3))
    release.set()
    until(lambda: set(threading.enumerate()) <= before, "all threads have ended")
    assert done.empty()


def test_close_ends_the_threads_of_an_idle_pool(make):
    """Threads that decode nothing have ended when it is closed, the watchdog soon; a second close does nothing."""
    before = set(threading.enumerate())
    pool, done = make(4), outcomes()
    for _ in range(8):
        pool.submit(int, done.put)
    assert [done.get(timeout=LONG) for _ in range(8)] == [0] * 8

    until(lambda: not pool._running, "all threads wait")
    pool.close()
    assert "mmout-decode" not in {thread.name for thread in set(threading.enumerate()) - before}
    pool.close()
    until(lambda: set(threading.enumerate()) <= before, "all threads have ended")


def test_a_closed_pool_takes_no_job(make):
    """A job that comes too late ends with an AbortedError at once and does not run."""
    pool, done, ran = make(1), outcomes(), threading.Event()
    pool.close()

    job = pool.submit(ran.set, done.put)
    assert job.settled
    assert isinstance(done.get_nowait(), AbortedError)
    assert not ran.is_set()


class ClosingQueue:
    """The queue of a pool that is closed, by another thread, just before a job is put or just after it is got."""

    def __init__(self, pool, moment):
        self.jobs = pool._jobs
        self.get_nowait = pool._jobs.get_nowait
        self.closer = threading.Thread(target=pool.close)
        self.moment = moment

    def put(self, job):
        if job is not None and self.moment == "put":
            self.closer.start()
            self.closer.join(0.2)  # closing may wait for the end of submit()
        self.jobs.put(job)

    def get(self):
        job = self.jobs.get()
        if job is not None and self.moment == "get":
            self.closer.start()
            self.closer.join(0.2)
        return job


@pytest.mark.parametrize("moment", ["put", "get"])
def test_a_job_that_meets_the_closing_of_the_pool_ends(make, release, moment):
    """A job on its way into the queue, or out of it to its thread, ends with an AbortedError like any other."""
    pool, done = make(1), outcomes()
    pool._jobs = ClosingQueue(pool, moment)
    job = pool.submit(hanging(release), done.put)

    until(lambda: job.settled, "the job has ended")
    assert isinstance(done.get(timeout=LONG), AbortedError)


def test_hanging_jobs_are_refused_before_they_eat_the_machine(make, release, monkeypatch):
    """With as many threads lost as may be, new jobs fail at once; when these come back, jobs are taken again."""
    monkeypatch.setattr(decode_pool, "MAX_ABANDONED", 2)
    pool, hung, done = make(1, timeout=0.1), outcomes(), outcomes()
    for _ in range(2):
        pool.submit(hanging(release), hung.put)
    assert [type(hung.get(timeout=LONG)) for _ in range(2)] == [DecodeError, DecodeError]

    assert pool.submit(lambda: "refused", done.put).settled
    refusal = done.get_nowait()
    assert isinstance(refusal, DecodeError)
    assert "2 decodes hang" in str(refusal)
    assert "restart" in str(refusal)

    release.set()
    until(lambda: not pool._abandoned, "the hanging threads have come back")
    pool.submit(lambda: "taken", done.put)
    assert done.get(timeout=LONG) == "taken"


@pytest.mark.parametrize("count", [1, 3])
def test_a_processor_that_hangs_leaves_room_for_others(make, release, count):
    """Once a job of it has passed its limit, further ones that hang do not take all threads."""
    pool, hung, good = make(count, timeout=0.05), outcomes(), outcomes()
    pool.submit(hanging(release), hung.put, ("slow",))
    assert isinstance(hung.get(timeout=LONG), DecodeError)
    pool.timeout = LONG
    for _ in range(5):
        pool.submit(hanging(release), hung.put, ("slow",))
    pool.submit(lambda: "quick", good.put, ("quick",))

    assert good.get(timeout=LONG / 2) == "quick"
    release.set()
    assert [hung.get(timeout=LONG) for _ in range(5)] == ["late"] * 5


def test_a_processor_whose_share_hangs_is_refused_alone(make, release):
    """With as many threads lost to it as the pool has, its next jobs fail at once, those that wait too."""
    pool, hung, done = make(2, timeout=0.1), outcomes(), outcomes()
    for _ in range(2):
        pool.submit(hanging(release), hung.put, ("slow",))
    assert [type(hung.get(timeout=LONG)) for _ in range(2)] == [DecodeError, DecodeError]

    assert pool.submit(lambda: "refused", done.put, ("slow",)).settled
    refusal = str(done.get_nowait())
    assert "2 decodes of output processor slow hang" in refusal
    pool.submit(lambda: "quick", done.put, ("quick",))
    assert done.get(timeout=LONG) == "quick"

    release.set()
    until(lambda: not pool._abandoned, "the hanging threads have come back")
    pool.submit(lambda: "taken", done.put, ("slow",))
    assert done.get(timeout=LONG) == "taken"


@pytest.mark.parametrize("ended_by", ["its end", "cancelling"])
def test_a_job_that_has_ended_keeps_nothing_of_its_request(make, release, ended_by):
    """What a request holds, megabytes of input, goes with its last user, though request and job know each other."""

    class Request:
        """Knows its job, which knows its methods."""

        job = None

        def work(self):
            if ended_by == "cancelling":
                started.set()
                release.wait(LONG)

        def done(self, outcome):
            ended.set()

    started, ended, pool = threading.Event(), threading.Event(), make(1)
    request = Request()
    gone = weakref.ref(request)
    gc.disable()
    try:
        request.job = pool.submit(request.work, request.done)
        if ended_by == "cancelling":
            assert started.wait(LONG)
            assert request.job.cancel()
            release.set()
        else:
            assert ended.wait(LONG)
        del request
        deadline = time.monotonic() + LONG
        while gone() is not None and time.monotonic() < deadline:
            time.sleep(0.001)
        assert gone() is None
    finally:
        gc.enable()


def test_whoever_is_told_cannot_end_a_thread(make):
    """An error of ``on_done`` goes into the log; the next job runs."""
    pool, ended = make(1), outcomes()

    def raises(outcome):
        raise RuntimeError(f"told of {outcome}")

    pool.submit(lambda: 1, raises)
    pool.submit(lambda: 2, ended.put)
    assert ended.get(timeout=LONG) == 2


def test_a_watchdog_that_can_start_no_thread_goes_on(make, release, monkeypatch):
    """The overdue job fails; the next job starts the thread."""
    pool, ended = make(1, 0.05), outcomes()
    start = pool._start_worker
    pool.submit(lambda: None, lambda _: None)
    until(lambda: not pool._running, "the first job")
    monkeypatch.setattr(pool, "_start_worker", _no_thread)
    pool.submit(hanging(release), ended.put)
    assert isinstance(ended.get(timeout=LONG), DecodeError)
    monkeypatch.setattr(pool, "_start_worker", start)
    pool.submit(lambda: 3, ended.put)
    assert ended.get(timeout=LONG) == 3


def _no_thread():
    raise RuntimeError("can't start new thread")
