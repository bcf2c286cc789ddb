"""FanOut: parts are made within a budget, joined in a thread, and every end leaves nothing."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from contextlib import contextmanager

import pytest

from vllm_mmout.engine.request.request import PartInput
from vllm_mmout.engine.scene.budgets import TileBudget
from vllm_mmout.engine.scene.fan_out import FanOut
from vllm_mmout.engine.scene.lane import StoppedError
from vllm_mmout.errors import AbortedError, DecodeError, InputError, SaveError
from vllm_mmout.geo.raster.raster import Window
from vllm_mmout.processors.part import Part

pytestmark = pytest.mark.engine
DEADLINE = 120
"""Seconds that no step of these tests takes, on whatever machine."""
TOTAL = 6


class Result:
    """What can be closed, as a raster on disk."""

    def __init__(self, parts):
        self.parts = parts
        self.closed = False

    def close(self):
        """Remove it."""
        self.closed = True


def collect(pick, parts):
    """Join the parts: their outputs by index."""
    return Result({part.index: part.output for part in parts})


class Parted(FanOut):
    """A request whose methods are given as functions."""

    def __init__(self, driven, total, picks, made, join, deliver):
        super().__init__(picks, total, 10)
        self.made, self.join, self.deliver = made, join, deliver
        self._budget, self._wake = driven.budget, driven.news.set

    def measure(self):
        """What is known before."""
        return self.total, self.nbytes

    def parts(self):
        """What is given."""
        return self.made

    def join(self, pick, parts):
        """Replaced by what is given."""


class Driven:
    """A fan-out, and what stands in for an engine: a part's output is its prompt."""

    def __init__(
        self, join=collect, *, total=TOTAL, empty=(), budget=None, picks=("a",), deliver=dict, parts=None, size=1
    ):
        self.size = size
        self.budget = budget or TileBudget(2, 1000)
        self.news = threading.Event()
        self.closed = []
        self.most = 0
        self.total, self.picks = total, picks
        made = self.made(empty) if parts is None else parts
        self.fan_out = Parted(self, total, picks, made, join, deliver)

    def made(self, empty):
        """Make the parts."""
        try:
            for start in range(0, self.total, self.size):
                indices = range(start, min(start + self.size, self.total))
                if not self.fan_out.reserve(len(indices)):
                    return
                self.most = max(self.most, self.budget.used_count)
                parts = [Part(index, Window(index, 0, 1, 1), None) for index in indices]
                if nothing := [part for part in parts if part.index in empty]:
                    yield PartInput(nothing)
                if some := [part for part in parts if part.index not in empty]:
                    yield PartInput(some, f"prompt {start}", name_of=lambda index: f"tile {index + 1} of {self.total}")
        finally:
            self.closed.append(True)

    def drive(self, limit_s=DEADLINE, send=None):
        """Run it to its end."""
        fan_out = self.fan_out
        fan_out.start()
        deadline = time.monotonic() + DEADLINE
        while not fan_out.finished:
            assert time.monotonic() < deadline, "it never ends"
            self.news.wait(0.02)
            self.news.clear()
            fan_out.check_time(limit_s)
            for part in fan_out.take():
                for pick in self.picks:
                    (send or self.send)(part, pick)
        fan_out.join_threads(DEADLINE)
        return self

    def send(self, part, pick):
        """Answer a part, or the parts of a block."""
        self.fan_out.decoded(part, pick, [f"{pick} of {each.index}" for each in part.parts])

    def assert_nothing_left(self):
        """No place is held, no thread runs, what made the parts is closed."""
        assert (self.budget.used_count, self.budget.used_bytes, len(self.budget._turns)) == (0, 0, 0)
        assert not [thread for thread in self.fan_out._threads.values() if thread.is_alive()]
        assert self.closed == [True]


def failing(error, at=2):
    """A sender that fails one part."""

    def send(driven):
        def each(part, pick):
            if part.index == at:
                driven.fan_out.failed(part, error)
            else:
                driven.send(part, pick)

        return each

    return send


@pytest.mark.parametrize("empty", [(), (0,), (1, 3), tuple(range(5))])
@pytest.mark.parametrize("picks", [("a",), ("a", "b")])
@pytest.mark.parametrize(("places", "size"), [(1, 1), (2, 1), (4, 4), (100, 1), (100, 4)])
def test_every_pick_gets_every_part(empty, picks, places, size):
    """Those without an observation too, in however few places, one by one and in blocks."""
    driven = Driven(empty=empty, picks=picks, budget=TileBudget(places, 1000), size=size).drive()
    results = driven.fan_out.outcome()
    assert list(results) == list(picks)
    for pick, result in results.items():
        assert not result.closed
        assert result.parts == {n: None if n in empty else f"{pick} of {n}" for n in range(TOTAL)}
    assert (driven.fan_out.done, driven.most) == (TOTAL, min(places, driven.most))
    driven.assert_nothing_left()


def test_parts_without_an_observation_hold_places_too():
    """A scene of nothing else does not run ahead of the thread that joins it."""
    go, seen = threading.Event(), []

    def join(pick, parts):
        seen.append(next(parts))
        go.wait(DEADLINE)
        return collect(pick, parts)

    driven = Driven(join, total=50, empty=range(50), budget=TileBudget(3, 1000))
    driven.fan_out.start()
    deadline = time.monotonic() + DEADLINE
    while driven.budget.used_count < 3:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    time.sleep(0.05)
    assert (driven.budget.used_count, driven.fan_out.done) == (3, 0)
    go.set()
    driven.fan_out.join_threads(DEADLINE)
    assert driven.fan_out.outcome()["a"].parts == dict.fromkeys(range(1, 50))
    driven.assert_nothing_left()


def test_a_failed_part_is_named():
    """The error says which part and where; its class and its cause stay."""
    cause = LookupError("no")
    error = DecodeError("it failed")
    error.__cause__ = cause
    driven = Driven()
    driven.drive(send=failing(error)(driven))
    with pytest.raises(DecodeError) as raised:
        driven.fan_out.outcome()
    assert str(raised.value) == "tile 3 of 6: it failed"
    assert raised.value.__cause__ is cause
    driven.assert_nothing_left()


def test_an_error_that_cannot_be_made_anew_is_told_as_it_is():
    """An author's own class of error may take other arguments; a note says which part it was."""

    class TooDarkError(DecodeError):
        def __init__(self, scene, level):
            super().__init__(f"{scene} is too dark: {level}")

    error = TooDarkError("scene", 3)
    driven = Driven()
    driven.drive(send=failing(error)(driven))
    with pytest.raises(TooDarkError) as raised:
        driven.fan_out.outcome()
    assert raised.value is error
    assert raised.value.__notes__ == ["this was tile 3 of 6"]
    driven.assert_nothing_left()


def test_the_first_failure_is_the_one_that_is_told():
    """What follows from it is not."""
    driven = Driven(budget=TileBudget(100, 1000))

    def send(part, pick):
        driven.fan_out.failed(part, DecodeError("first" if part.index == 0 else "later"))

    driven.drive(send=send)
    assert str(driven.fan_out.error).endswith(": first")
    driven.assert_nothing_left()


def raising(error):
    """What raises an error."""

    def join(pick, parts):
        next(parts)
        raise error

    return join


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_a_join_that_raises(error):
    """It is the request's error; what would end an event loop, if raised there, is the cause of an error of ours."""
    driven = Driven(raising(error)).drive()
    failed = driven.fan_out.error
    assert isinstance(failed, Exception)
    assert error in (failed, failed.__cause__)
    driven.assert_nothing_left()


@pytest.mark.parametrize(("error", "kind"), [(ValueError("x"), ValueError), (SystemExit(3), InputError)])
@pytest.mark.parametrize("at_close", [False, True])
def test_parts_that_cannot_be_made(error, kind, at_close):
    """Nor what cannot be closed: the request ends, with an exception that leaves no process."""

    def parts():
        try:
            for index in range(3):
                if index and not at_close:
                    raise error
                if not driven.fan_out.reserve():
                    return
                yield PartInput([Part(index, None, None)], str(index))
        finally:
            if at_close:
                raise error

    driven = Driven(parts=parts(), budget=TileBudget(1, 1))

    def send(part, pick):
        if at_close and part.index == 1:
            driven.fan_out.stop()  # the error of the end comes too late then
        driven.send(part, pick)

    driven.drive(send=send)
    assert type(driven.fan_out.error) is (AbortedError if at_close else kind)
    driven.closed.append(True)
    driven.assert_nothing_left()


def test_a_join_that_returns_early():
    """It has what it wanted; the rest is made all the same, and not joined."""
    driven = Driven(lambda pick, parts: next(parts).output).drive()
    assert driven.fan_out.outcome() == {"a": "a of 0"}
    assert driven.fan_out.done == TOTAL
    driven.assert_nothing_left()


def test_a_join_that_ends_long_after_it_was_given_up():
    """What it returns then is removed, and its late parts give no place back twice."""
    go, made = threading.Event(), []

    def join(pick, parts):
        first = next(parts)
        go.wait(DEADLINE)
        made.append(Result({first.index: first.output}))
        return made[0]

    driven = Driven(join)
    driven.fan_out.start()
    (joining,) = [thread for thread in driven.fan_out._threads.values() if thread.name == "mmout-join"]
    driven.fan_out._threads.clear()
    for part in wait_for_parts(driven):
        driven.send(part, "a")
    while not driven.fan_out.finished:
        driven.fan_out.check_time(0.1)
        time.sleep(0.01)
    assert isinstance(driven.fan_out.error, DecodeError)
    go.set()
    joining.join(DEADLINE)
    assert made[0].closed
    driven.assert_nothing_left()


def wait_for_parts(driven):
    """The first parts that are ready."""
    deadline = time.monotonic() + DEADLINE
    while not (parts := driven.fan_out.take()):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return parts


@pytest.mark.parametrize("tile", [None, 1])
def test_a_failed_block_is_named(tile):
    """The error says which tile failed if that is known, else which tiles were in the block."""
    error = DecodeError("it failed")
    error.tile = tile
    driven = Driven(size=3, budget=TileBudget(6, 1000))
    driven.drive(send=failing(error, at=3)(driven))
    where = "tile 5 of 6" if tile == 1 else "tile 4 of 6 to tile 6 of 6"
    assert str(driven.fan_out.error) == f"{where}: it failed"
    driven.assert_nothing_left()


@pytest.mark.parametrize("kind", [Exception, BaseException])
def test_a_join_that_swallows_what_ends_it(kind):
    """Asking again ends it again, however often; its result counts for nothing and is removed."""
    made = []

    def join(pick, parts):
        for _ in range(20):
            try:
                next(parts)
            except StopIteration:
                break
            except kind:
                continue
        made.append(Result({}))
        return made[0]

    driven = Driven(join)
    driven.drive(send=failing(DecodeError("no"))(driven))
    assert isinstance(driven.fan_out.error, DecodeError)
    assert [result.closed for result in made] == [True] * len(made)
    assert len(made) == (kind is BaseException)
    driven.assert_nothing_left()


@contextmanager
def hanging():
    """A join that hangs on its second part, and how to let it go."""
    go = threading.Event()

    def join(pick, parts):
        next(parts)
        next(parts)
        go.wait(DEADLINE)
        return collect(pick, parts)

    yield join, go
    go.set()


@pytest.mark.parametrize("places", [1, 2, 100])
def test_a_join_that_hangs(places):
    """It is given up, also where nothing waits behind it for want of places; all places are free again."""
    with hanging() as (join, go):
        driven = Driven(join, budget=TileBudget(places, 1000))
        driven.drive(limit_s=0.2)
        with pytest.raises(DecodeError, match=r"assemble of a .* longer than the limit of 0\.2 s"):
            driven.fan_out.outcome()
        driven.assert_nothing_left()
        hung = [thread for thread in threading.enumerate() if thread.name == "mmout-join"]
        assert len(hung) == 1
        go.set()
        hung[0].join(DEADLINE)
        driven.assert_nothing_left()


@pytest.mark.timing
def test_a_join_that_waits_for_the_engine_does_not_hang():
    """The limit is on its own work, not on how long a part takes to come."""
    driven = Driven(budget=TileBudget(100, 1000))

    def send(part, pick):
        time.sleep(0.1)
        driven.send(part, pick)

    assert driven.drive(limit_s=0.3, send=send).fan_out.error is None


@pytest.mark.parametrize("place", ["after its last part", "reading"])
def test_what_hangs_after_the_end(place):
    """A thread that does not end once the request has failed is not waited for."""
    go = threading.Event()

    def join(pick, parts):
        result = collect(pick, parts)
        if pick == "a" and place != "reading":
            go.wait(DEADLINE)
        elif pick == "b":
            raise ValueError("b fails")
        return result

    driven = Driven(join, picks=("a", "b"))
    if place == "reading":
        whole = driven.fan_out.made

        def parts():
            yield next(whole)
            driven.fan_out.stop(ValueError("meanwhile"))
            go.wait(DEADLINE)
            yield from whole

        driven.fan_out.made = parts()
    driven.drive(limit_s=0.2)
    assert isinstance(driven.fan_out.error, ValueError)
    assert (driven.budget.used_count, driven.budget.used_bytes) == (0, 0)
    go.set()


def test_results_are_delivered_when_all_are_there():
    """Two picks, of which one fails at its end: nothing is delivered, and the other's result is removed."""
    made, delivered = [], []

    def join(pick, parts):
        made.append(collect(pick, parts))
        if pick == "b":
            while len(made) < 2:
                time.sleep(0.001)
            raise DecodeError("b fails")
        return made[-1]

    driven = Driven(join, picks=("a", "b"), deliver=delivered.append).drive()
    assert str(driven.fan_out.error) == "b fails"
    assert delivered == []
    assert sorted(result.closed for result in made) == [False, True]
    driven.assert_nothing_left()


def test_a_delivery_that_fails():
    """A full disk at the very end: an error, and no result."""
    made = []

    def deliver(results):
        made.extend(results.values())
        raise SaveError("No space left on device")

    driven = Driven(deliver=deliver, picks=("a", "b")).drive()
    with pytest.raises(SaveError):
        driven.fan_out.outcome()
    assert [result.closed for result in made] == [True, True]
    driven.assert_nothing_left()


def test_a_stop_while_results_are_written_comes_too_late():
    """What has begun to appear at its destination is a result."""

    def deliver(results):
        driven.fan_out.stop()
        return dict(results)

    driven = Driven(deliver=deliver)
    driven.drive()
    assert driven.fan_out.error is None
    assert not driven.fan_out.outcome()["a"].closed


@pytest.mark.parametrize("when", [0, 1, 3, 5])
def test_a_stop_from_outside(when):
    """It ends, wherever it is, with an AbortedError; a second stop changes nothing."""
    driven = Driven()

    def send(part, pick):
        if part.index == when:
            driven.fan_out.stop()
            driven.fan_out.stop(ValueError("later"))
        driven.send(part, pick)

    driven.drive(send=send)
    assert isinstance(driven.fan_out.error, AbortedError)
    assert driven.fan_out.take() == []
    driven.assert_nothing_left()


def test_one_that_is_stopped_while_it_waits_for_a_place():
    """Others hold all places: it ends though they do not."""
    budget = TileBudget(1, 1000)
    assert budget.take(10, lambda: False)
    driven = Driven(budget=budget)
    driven.fan_out.start()
    time.sleep(0.02)
    driven.fan_out.stop()
    driven.fan_out.join_threads(DEADLINE)
    assert driven.fan_out.finished
    assert (budget.used_count, budget.used_bytes, len(budget._turns)) == (1, 10, 0)


@pytest.mark.parametrize("refused", [0, 1, 2])
def test_a_system_without_threads(monkeypatch, refused):
    """The error goes on; those that had started end, and no place is held."""
    started = []
    original = threading.Thread.start

    def start(thread):
        if thread.name.startswith("mmout-"):
            if len(started) == refused:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        original(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    driven = Driven(picks=("a", "b"))
    with pytest.raises(RuntimeError, match="can't start"):
        driven.fan_out.start()
    driven.fan_out.join_threads(DEADLINE)
    assert driven.fan_out.finished
    assert (driven.budget.used_count, driven.budget.used_bytes) == (0, 0)
    assert not [thread for thread in started if thread.is_alive()]


def test_a_result_is_the_callers_alone():
    """Once it was handed over, nothing here keeps it: its file goes when the caller drops it."""
    driven = Driven().drive()
    gc.disable()
    try:
        result = driven.fan_out.outcome()["a"]
        watched = weakref.ref(result)
        del result
        assert watched() is None
    finally:
        gc.enable()
    driven.fan_out.discard()


def test_results_that_nobody_takes():
    """They are removed."""
    kept = []

    def join(pick, parts):
        kept.append(collect(pick, parts))
        return kept[0]

    driven = Driven(join).drive()
    driven.fan_out.discard()
    assert kept[0].closed


def test_authors_cannot_catch_the_stop_as_an_exception():
    """``except Exception`` around a loop over parts is common."""
    assert not issubclass(StoppedError, Exception)
