"""Schedule: runs start while there is room, fail and end once each, and nothing is sent of those that ended."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from vllm_mmout.engine.parts.budgets import TileBudget
from vllm_mmout.engine.parts.schedule import Run, Schedule

pytestmark = pytest.mark.engine


@dataclass(eq=False)
class Work:
    """Stands for a request and its fan-out, without threads."""

    ready: list = field(default_factory=list)
    nbytes: int = 1
    reading: bool = False
    finished: bool = False
    error: BaseException | None = None
    paused: bool = False
    started: bool = False
    done: int = 0
    total: int = 1
    no_thread: bool = False
    assumed: tuple = ()
    raises: BaseException | None = None

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
    runs = [Run(str(number), work, work, 5) for number, work in enumerate(works)]
    for run in runs:
        schedule.add(run)
    return schedule, runs


def sent(turn):
    """The parts of a turn."""
    return [part for batch in turn.batches for _, part in batch.parts]


def test_further_runs_wait_in_their_order():
    """They hold as little as can be meanwhile, and start when others end."""
    schedule, runs = scheduled(Work([1]), Work([2]), Work([3]), Work([4]))
    assert [run.request.paused for run in runs] == [False, False, True, True]
    assert sorted(sent(schedule.turn())) == [1, 2]
    assert schedule.room == -2
    runs[1].fan_out.finished = True
    turn = schedule.turn()
    assert (turn.ended, sent(turn), [run.fan_out.started for run in runs]) == (
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
    bad.fan_out.error, bad.fan_out.ready, good.fan_out.ready = LookupError("no"), [1], [2]
    turn = schedule.turn()
    assert (turn.failed, turn.ended, sent(turn)) == ([bad], [], [2])
    assert (schedule.turn().failed, schedule.room) == ([], 0)
    bad.fan_out.finished = True
    turn = schedule.turn()
    assert (turn.failed, turn.ended, schedule.room) == ([], [bad], 1)
    assert bad.result().error is bad.fan_out.error


def test_a_run_that_is_given_up_while_it_waits_never_starts():
    """It ends at once, and holds no place."""
    schedule, (_, waits) = scheduled(Work(), Work([1]), most=1)
    schedule.turn()
    waits.fan_out.error = LookupError("aborted")
    schedule.give_up(waits)
    turn = schedule.turn()
    assert (turn.ended, sent(turn), waits.fan_out.started, schedule.room) == ([waits], [], False, 0)


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
    bad.fan_out.raises = LookupError("closed")
    good.fan_out.ready = [2]
    turn = schedule.turn()
    assert (turn.failed, sent(turn)) == ([bad], [2])
    assert bad.fan_out.error is bad.fan_out.raises
