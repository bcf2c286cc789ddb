"""Schedule: runs start while there is room, fail and end once each, and nothing is sent of those that ended."""

from __future__ import annotations

import pytest

from vllm_mmout import OutputParams
from vllm_mmout.engine.request.request import Request
from vllm_mmout.engine.scene.budgets import TileBudget
from vllm_mmout.engine.scene.run import Run
from vllm_mmout.engine.scene.schedule import Schedule

pytestmark = pytest.mark.engine


class Work(Run):
    """A run without threads."""

    reading = finished = paused = started = False

    def __init__(self, ready=(), *, no_thread=False):
        super().__init__(Request(OutputParams()), (), OutputParams(), total=1)
        self.ready, self.no_thread, self.limit_s, self.raises = [*ready], no_thread, 5, None

    def measure(self):
        """Never called, as the following three."""

    def parts(self):
        """See `measure`."""

    def join(self, pick, parts):
        """See `measure`."""

    def close(self):
        """See `measure`."""

    @property
    def stopped(self):
        return self.error is not None

    def take(self):
        ready, self.ready = self.ready, []
        return ready

    def check_time(self, limit_s):
        assert limit_s == 5
        if self.raises is not None and self.error is None:
            raise self.raises

    def stop(self, error):
        self.error = error

    def pause(self):
        self.paused = True

    def start(self):
        self.started = True
        if self.no_thread:
            self.error, self.finished = RuntimeError("can't start new thread"), True
            raise self.error


def scheduled(*works, most=2):
    """A schedule of some runs, and these."""
    schedule = Schedule(4, TileBudget(8, 100), most)
    for work in works:
        schedule.add(work)
    return schedule, [*works]


def sent(turn):
    """The parts of a turn."""
    return [part for batch in turn.batches for _, part in batch.parts]


def test_further_runs_wait_in_their_order():
    """They hold as little as can be meanwhile, and start when others end."""
    schedule, runs = scheduled(Work([1]), Work([2]), Work([3]), Work([4]))
    assert [run.paused for run in runs] == [False, False, True, True]
    assert sorted(sent(schedule.turn())) == [1, 2]
    assert schedule.room == -2
    runs[1].finished = True
    turn = schedule.turn()
    assert (turn.ended, sent(turn), [run.started for run in runs]) == (
        [runs[1]],
        [3],
        [True, True, True, False],
    )
    schedule.remove(runs[0])
    assert sent(schedule.turn()) == [4]
    assert schedule.running == [runs[2], runs[3]]


def test_a_failure_is_told_once_and_ends_when_nothing_is_left_of_it():
    """Its parts are not sent; those of others are."""
    schedule, (bad, good) = scheduled(Work(), Work())
    schedule.turn()
    bad.error, bad.ready, good.ready = LookupError("no"), [1], [2]
    turn = schedule.turn()
    assert (turn.failed, turn.ended, sent(turn)) == ([bad], [], [2])
    assert (schedule.turn().failed, schedule.room) == ([], 0)
    bad.finished = True
    turn = schedule.turn()
    assert (turn.failed, turn.ended, schedule.room) == ([], [bad], 1)
    assert bad.result().error is bad.error


def test_a_run_that_is_given_up_while_it_waits_never_starts():
    """It ends at once, and holds no place."""
    schedule, (_, waits) = scheduled(Work(), Work([1]), most=1)
    schedule.turn()
    waits.error = LookupError("aborted")
    schedule.give_up(waits)
    turn = schedule.turn()
    assert (turn.ended, sent(turn), waits.started, schedule.room) == ([waits], [], False, 0)


def test_a_run_for_which_there_is_no_thread_fails_alone():
    """The next turn says so, and others go on."""
    schedule, (bad, good) = scheduled(Work(no_thread=True), Work([1]))
    assert sent(schedule.turn()) == [1]
    turn = schedule.turn()
    assert (turn.failed, turn.ended, schedule.running) == ([bad], [bad], [good])


def test_what_looking_at_a_run_raises_is_its_own():
    """As the closing of a result of an author's; the others go on in the same turn."""
    schedule, (bad, good) = scheduled(Work(), Work([1]))
    schedule.turn()
    bad.raises = LookupError("closed")
    good.ready = [2]
    turn = schedule.turn()
    assert (turn.failed, sent(turn)) == ([bad], [2])
    assert bad.error is bad.raises
