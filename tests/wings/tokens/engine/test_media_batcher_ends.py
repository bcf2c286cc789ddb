"""The batcher of decoders: every medium ends once, whatever a decoder does, and whoever ends the engine."""

from __future__ import annotations

import gc
import queue
import sys
import threading
import time
import weakref
from types import SimpleNamespace

import pytest
from counting_decoder import (
    ANY,
    LONG,
    SQUARE,
    WIDE,
    Counting,
    all_at_once,
    batchers,
    media,
    medium,
    pays,
    settled,
    submit,
    tried,
    until,
)

from vllm_mmout.engine import decode_pool
from vllm_mmout.errors import AbortedError, DecodeError, InputError
from vllm_mmout.wings.tokens.engine import batcher as batcher_module
from vllm_mmout.wings.tokens.engine.batcher import MediaBatcher, MediaJob

pytestmark = pytest.mark.engine


@pytest.fixture
def make(monkeypatch):
    """Makes batchers."""
    with batchers(monkeypatch) as make:
        yield make


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("count", [1, 8])
def test_a_medium_fails_alone(make, error, count):
    """Others of its batch are decoded; its error names the processor and has what was raised as its cause."""
    raised = error("code 7 is broken")

    class Fragile(Counting):
        def one(self, medium):
            if medium.start == 0:
                raise raised
            return medium.start

    processor = Fragile(pays, max_batch=8)
    batcher = make(processor)
    all_at_once(batcher, media(40, start=1000))
    found = all_at_once(batcher, media(count))

    failure = found.pop(0)
    assert found == {number: number for number in range(1, count)}
    assert isinstance(failure, DecodeError)
    assert str(failure) == f"Fragile failed: {error.__name__}: code 7 is broken"
    assert failure.__cause__ is raised
    assert all_at_once(batcher, media(1, start=50)) == {50: 50}


@pytest.mark.timing
def test_media_of_a_failed_batch_have_their_time_each(make):
    """The limit is that of one forward: what follows a failed batch has as much again."""

    class Slow(Counting):
        def decode_batch(self, media):
            if self.slow:
                time.sleep(0.08)
                assert len(media) == 1, "no batches today"
            return super().decode_batch(media)

    processor = Slow(pays, max_batch=8)
    processor.slow = False
    batcher = make(processor, timeout=0.5)
    all_at_once(batcher, media(40, start=1000))
    processor.slow = True

    assert all_at_once(batcher, media(8)) == {number: number for number in range(8)}


@pytest.mark.parametrize("outputs", [[], [1], [1] * 9])
def test_a_forward_with_another_number_of_outputs_fails(make, outputs):
    """What belongs to whom is not known then: every medium of it fails, and the error says why."""

    class Forgetful(Counting):
        def decode_batch(self, media):
            found = super().decode_batch(media)
            return found if len(media) == 1 or media[0].start >= 1000 else outputs

    processor = Forgetful(pays, max_batch=8)
    batcher = make(processor)
    all_at_once(batcher, media(40, start=1000))

    found = all_at_once(batcher, media(8))
    failures = [outcome for outcome in found.values() if isinstance(outcome, DecodeError)]
    assert len(failures) in {7, 8}  # the first may have gone alone
    assert f"Forgetful.decode_batch returned {len(outputs)} outputs for" in str(failures[0])


@pytest.mark.parametrize("key", ["raises", "unhashable"])
def test_a_processor_that_cannot_say_what_goes_together_fails_its_medium(make, key):
    """Nothing leaves ``submit``, which runs where all requests of the engine are served."""

    class Confused(Counting):
        def batch_key(self, medium):
            if medium.start:
                return 1
            if key == "raises":
                raise ValueError("no key")
            return []

    batcher = make(Confused())
    found = all_at_once(batcher, media(3))

    assert isinstance(found[0], DecodeError)
    assert "Confused failed: " in str(found[0])
    assert (found[1], found[2]) == (1, 2)


def test_cancelled_media_are_not_decoded(make):
    """Neither is anybody told of them."""
    processor, batcher = Counting(pays, max_batch=4), None
    batcher = make(processor)
    done = queue.Queue()
    processor.go_on.clear()
    jobs = submit(batcher, media(30), done)
    assert processor.running.wait(LONG)
    for job in jobs[1::2]:
        job.cancel()
    processor.go_on.set()

    assert settled(done, 15) == {number: number for number in range(0, 30, 2)}
    assert sorted(number for forward in processor.forwards for number in forward) == list(range(0, 30, 2))


def test_a_medium_that_is_cancelled_while_it_waits_for_others_is_not_decoded(make):
    """The one that comes then does not go with it."""
    processor, batcher = tried(make, max_batch=2, batch_wait_ms=1e6 * LONG, timeout=1000 * LONG)
    done, waiting = queue.Queue(), threading.Event()
    wait = batcher._more.wait
    batcher._more.wait = lambda seconds: waiting.set() or wait(seconds)
    (job,) = submit(batcher, media(1), done)
    assert waiting.wait(LONG)
    job.cancel()
    submit(batcher, media(1, start=1), done)

    submit(batcher, media(1, start=2), done)
    found = settled(done, 2)
    assert found == {1: 1, 2: 2}
    assert [0] not in processor.forwards
    assert not any(0 in forward for forward in processor.forwards)


def test_media_of_a_failed_batch_that_are_cancelled_are_not_decoded(make):
    """Nobody waits for them when their turn comes."""
    jobs = []

    class Fragile(Counting):
        def decode_batch(self, media):
            found = super().decode_batch(media)
            if jobs and len(media) > 1:
                jobs[3].cancel()
                raise ValueError("one of them")
            return found

    processor = Fragile(pays, max_batch=8)
    batcher = make(processor)
    all_at_once(batcher, media(40, start=1000))
    processor.forwards.clear()
    done = queue.Queue()
    processor.go_on.clear()
    jobs += submit(batcher, media(8), done)
    processor.go_on.set()

    assert settled(done, 7) == {number: number for number in range(8) if number != 3}
    assert [3] not in processor.forwards


def test_a_hanging_decoder_fails_its_media_and_no_others(make):
    """All of its batch fail after the limit; those behind them are decoded in a new thread."""
    hang = threading.Event()

    class Hanging(Counting):
        def one(self, medium):
            if medium.start == 3:
                hang.wait(LONG)
            return medium.start

    processor = Hanging(pays, max_batch=4)
    batcher = make(processor, timeout=1.0)
    all_at_once(batcher, media(40, start=1000))
    processor.forwards.clear()
    try:
        found = all_at_once(batcher, media(20))
    finally:
        hang.set()

    (hung,) = (forward for forward in processor.forwards if 3 in forward)
    for number, outcome in found.items():
        if number in hung:
            assert isinstance(outcome, DecodeError)
            assert "longer than the limit of 1 s" in str(outcome)
            assert "decode_timeout_s" in str(outcome)
        else:
            assert outcome == number


def test_where_too_many_decoders_hang_media_are_refused(make, monkeypatch):
    """They fail at once: nobody waits for a thread that will not come."""
    monkeypatch.setattr(decode_pool, "MAX_ABANDONED", 1)
    hang = threading.Event()

    class Hanging(Counting):
        def one(self, medium):
            hang.wait(LONG)
            return medium.start

    batcher = make(Hanging(), timeout=0.2)
    done = queue.Queue()
    try:
        submit(batcher, media(1), done)
        assert "longer than the limit" in str(settled(done, 1)[0])
        submit(batcher, media(3, start=1), done)
        found = settled(done, 3)
    finally:
        hang.set()
    for outcome in found.values():
        assert isinstance(outcome, DecodeError)
        assert "restart the engine" in str(outcome)


@pytest.mark.timing
def test_a_turn_that_is_over_before_it_took_anything_settles_a_medium(make, monkeypatch):
    """A process that was stopped while a medium waited for others finds its time over: none is forgotten."""
    processor, batcher = tried(make, max_batch=8, batch_wait_ms=100, timeout=0.3)
    until(lambda: not batcher._tasks_without_jobs, "tasks that find nothing to take are over")
    stopped, go_on = threading.Event(), threading.Event()

    def wait(seconds):
        stopped.set()
        batcher._lock.release()
        assert go_on.wait(LONG)
        return batcher._lock.acquire()

    monkeypatch.setattr(batcher, "_more", SimpleNamespace(wait=wait, notify_all=lambda: None))
    done = queue.Queue()
    submit(batcher, media(1), done)
    assert stopped.wait(LONG)
    found = settled(done, 1)
    go_on.set()

    assert isinstance(found[0], DecodeError)
    processor.cost = pays
    done = queue.Queue()
    submit(batcher, media(8, start=1), done)
    assert settled(done, 8) == {number: number for number in range(1, 9)}
    assert not any(0 in forward for forward in processor.forwards)


def test_close_fails_what_waits(make):
    """Media that run and media that wait end with an AbortedError, and so do those that come later."""
    processor = Counting(pays, max_batch=4)
    batcher = make(processor)
    done = queue.Queue()
    processor.go_on.clear()
    submit(batcher, media(20), done)
    assert processor.running.wait(LONG)
    batcher.close()
    submit(batcher, media(2, start=20), done)
    found = settled(done, 22)
    processor.go_on.set()

    assert set(found) == set(range(22))
    assert all(isinstance(outcome, AbortedError) for outcome in found.values())
    assert processor.sizes == [1]
    batcher.close()
    assert done.empty()


@pytest.mark.parametrize("state", ["unused", "idle", "waits for others", "decodes"])
def test_close_leaves_no_thread(make, state):
    """Whatever the decoder's thread does."""
    before = set(threading.enumerate())
    processor = Counting(pays, max_batch=2, batch_wait_ms=1e6 * LONG)
    batcher = make(processor, 1000 * LONG)
    done = queue.Queue()
    if state != "unused":
        all_at_once(batcher, media(40))
    if state == "waits for others":
        waiting, wait = threading.Event(), batcher._more.wait
        batcher._more.wait = lambda seconds: waiting.set() or wait(seconds)
        batcher._sizes.waits = lambda key: True
        submit(batcher, media(1), done)
        assert waiting.wait(LONG)
    if state == "decodes":
        processor.running.clear()
        processor.go_on.clear()
        submit(batcher, media(2), done)
        assert processor.running.wait(LONG)
    batcher.close()
    processor.go_on.set()

    until(lambda: set(threading.enumerate()) <= before, "the threads end")


def test_a_job_that_has_ended_keeps_its_outcome_only():
    """The callback, which knows the request, is let go, and the batcher keeps nothing of either."""
    processor = Counting()
    batcher = MediaBatcher(processor, LONG)

    class Done:
        def __init__(self):
            self.jobs = queue.Queue()

        def put(self, job):
            self.jobs.put(job)

    done = Done()
    job = batcher.submit(medium(0), ANY, done.put)
    assert done.jobs.get(timeout=LONG) is job
    forgotten = weakref.ref(done)
    del done
    until(lambda: gc.collect() is None or forgotten() is None, "the callback is let go")
    batcher.close()
    assert job.outcome == 0


def test_who_sees_that_a_job_has_ended_finds_its_outcome():
    """Another thread may look after any line of ``settle``."""
    job = MediaJob(medium(0), ANY, lambda job: None)
    seen = []

    def look(frame, event, argument):
        seen.append((job.done is None, job.outcome))
        return look

    sys.settrace(look)
    try:
        job.settle("a picture")
    finally:
        sys.settrace(None)
    assert (True, "a picture") in seen
    assert (True, None) not in seen


class Moody(Counting):
    """Fails now and then."""

    def one(self, medium):
        if medium.start % 17 == 0:
            raise ValueError("a bad one")
        return medium.start


@pytest.mark.parametrize("close", [False, True])
def test_every_job_settles_once_under_many_threads(close):
    """Threads that submit and cancel, media that fail, and an end in between: none is lost, none ends twice."""
    batcher = MediaBatcher(Moody(pays, max_batch=8, batch_wait_ms=0.2), LONG)
    done, cancelled, started = queue.Queue(), set(), threading.Barrier(9)

    def work(part):
        started.wait()
        for number in range(part * 1000, part * 1000 + 150):
            (job,) = submit(batcher, [medium(number, (SQUARE, WIDE)[number // 5 % 2])], done)
            if number % 10 == 3:
                job.cancel()
                cancelled.add(number)

    threads = [threading.Thread(target=work, args=(part,)) for part in range(8)]
    for thread in threads:
        thread.start()
    started.wait()
    if close:
        until(lambda: batcher.calls > 20, "some are decoded")
        batcher.close()
    for thread in threads:
        thread.join()
    found = until_settled(done, {part * 1000 + number for part in range(8) for number in range(150)} - cancelled)
    batcher.close()

    aborted = {number for number, outcome in found.items() if isinstance(outcome, AbortedError)}
    assert close or not aborted
    for number in found.keys() - aborted:
        assert isinstance(found[number], DecodeError) if number % 17 == 0 else found[number] == number
    assert {job.medium.start for job in list(done.queue)} <= cancelled


def until_settled(done, wanted):
    """What jobs ended with, until all that are wanted have; each once."""
    found = {}
    while missing := wanted - set(found):
        job = done.get(timeout=LONG)
        assert job.medium.start not in found, f"{job.medium.start} ends twice; {len(missing)} are missing"
        found[job.medium.start] = job.outcome
    return found


def test_where_no_thread_can_be_started_a_medium_leaves_nothing(make, monkeypatch):
    """The error reaches its request; media that come later each have their turn."""
    batcher = make(Counting(pays, max_batch=1))

    def none(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        with pytest.raises(RuntimeError, match="new thread"):
            batcher.submit(medium(7), ANY, lambda _: None)
    for number in range(3):  # one at a time: none waits for the next
        assert all_at_once(batcher, media(1, start=number)) == {number: number}


def test_whoever_is_told_of_one_medium_cannot_keep_others_from_theirs(make):
    """An error of ``done`` goes into the log."""
    batcher, ended = make(Counting(pays, max_batch=4)), queue.Queue()

    def raises(job):
        raise RuntimeError(f"told of {job.outcome}")

    for number in range(8):
        batcher.submit(medium(number), ANY, raises if number % 2 else ended.put)
    assert sorted(ended.get(timeout=LONG).outcome for _ in range(4)) == [0, 2, 4, 6]


def test_batches_that_fail_are_told_once(make, monkeypatch):
    """In the log, with the error; media go one by one then, but for a look now and then."""
    said = []
    monkeypatch.setattr(batcher_module.logger, "warning", lambda *words, **_: said.append(words))

    class Alone(Counting):
        def decode_batch(self, media):
            if len(media) > 1:
                raise MemoryError("too large")
            return super().decode_batch(media)

    batcher = make(Alone(pays, max_batch=8))
    for start in range(0, 400, 8):
        assert len(all_at_once(batcher, media(8, start=start))) == 8
    assert batcher.calls <= 400 + 2 + 2 * 400 // 64
    assert len(said) == 1


def test_an_object_that_is_none_fails_its_medium_alone(make):
    """Also among several."""

    class Forgetful(Counting):
        def one(self, medium):
            return medium.start or None

    batcher = make(Forgetful(pays, max_batch=8))
    all_at_once(batcher, media(40, start=1000))
    found = all_at_once(batcher, media(8))
    assert "returned None; it must return an output object" in str(found.pop(0))
    assert found == {number: number for number in range(1, 8)}


def test_what_a_decoder_says_of_its_input_is_no_fault_of_the_clients():
    """An `InputError` of numbers that it made itself is a `DecodeError`, which is the server's."""
    failure = MediaBatcher(Counting(pays, max_batch=1), LONG)._failure(InputError("samples are not finite"))
    assert isinstance(failure, DecodeError)
    assert isinstance(failure.__cause__, InputError)
