"""Schedule: runs start while there is room, fail and end once each, and nothing is sent of those that ended."""

from __future__ import annotations

import numpy as np
import pytest

from vllm_mmout import OutputParams
from vllm_mmout.engine.request.request import PartInput, Request
from vllm_mmout.engine.scene.budgets import TileBudget
from vllm_mmout.engine.scene.engine_loads import EngineLoads
from vllm_mmout.engine.scene.run import Run
from vllm_mmout.engine.scene.schedule import Schedule
from vllm_mmout.processors.part import Part

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
        return [part if isinstance(part, PartInput) else PartInput([Part(part, None, None)], part) for part in ready]

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


def block(first, count):
    """Return a block of tiles with a tensor of their indices."""
    indices = range(first, first + count)
    tiles = [Part(index, None, None) for index in indices]
    return PartInput(tiles, tensors={"x": np.array(indices)}, is_block=True)


def scheduled(*works, most=2, engines=1, clock=lambda: 0.0):
    """A schedule of some runs, and these."""
    loads = EngineLoads(engines, 4, clock=clock)
    schedule = Schedule(loads, TileBudget(8, 100), most)
    for work in works:
        schedule.add(work)
    return schedule, [*works]


def sent(turn):
    """The parts of a turn."""
    return [part.prompt for _, part, _ in turn.sendings]


def sizes(turn):
    """The indices of the tiles in each block of a turn."""
    for _, part, _ in turn.sendings:
        assert [tile.index for tile in part.parts] == part.tensors["x"].tolist()
    return [[tile.index for tile in part.parts] for _, part, _ in turn.sendings]


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


def test_parts_are_sent_until_two_steps_of_them_are_in_flight():
    """Parts of a plugin or of a model written for vLLM are sent one by one; a step takes four."""
    schedule, (run,) = scheduled(Work(range(10)))
    turn = schedule.turn()
    assert sent(turn) == [*range(8)]
    schedule.answered(run, turn.sendings[0][1])
    assert sent(schedule.turn()) == [8]


def test_a_block_is_cut_to_the_size_that_the_engine_takes():
    """The first blocks have one and four tiles, and the rest waits until an answer makes room."""
    schedule, (run,) = scheduled(Work([block(0, 16)]))
    assert sizes(schedule.turn()) == [[0], [1]]
    for number, expected in ((0, [[2, 3, 4, 5]]), (1, [[6, 7, 8, 9]])):
        schedule.answered(run, block(number, 1), nbytes=10)
        assert sizes(schedule.turn()) == expected
    schedule.answered(run, block(2, 4), nbytes=40)
    assert sizes(schedule.turn()) == [[10, 11, 12, 13, 14, 15]]


def test_a_run_does_not_take_the_block_size_of_another():
    """The tiles and results of a scene of another kind may be many times larger, so it begins with one tile."""
    first, second = Work([block(0, 64)]), Work()
    schedule, _ = scheduled(first, second)
    for count in (1, 4):
        first.pace.add(count, 0.0, count)
    assert sizes(schedule.turn()) == [[*range(16)], [*range(16, 32)]]
    second.ready = [block(0, 4)]
    first.error = LookupError("aborted")
    for number in (0, 16):
        schedule.answered(first, block(number, 16))
    assert sizes(schedule.turn()) == [[0], [1]]


def test_beside_single_requests_only_idle_engines_get_blocks():
    """A single request waits for one small block at most."""
    schedule, (run,) = scheduled(Work([block(0, 8)]), engines=2)
    assert sizes(schedule.turn(gives_way=True)) == [[0], [1]]
    assert sizes(schedule.turn(gives_way=True)) == []
    schedule.answered(run, block(1, 1), engine=1, nbytes=10)
    turn = schedule.turn(gives_way=True)
    assert (sizes(turn), turn.sendings[0][2]) == ([[2]], 1)


def test_blocks_that_are_held_are_sent_later():
    """A held schedule starts runs, but sends nothing."""
    schedule, (run,) = scheduled(Work([block(0, 8)]))
    assert sizes(schedule.turn(holds=True)) == []
    assert run.started
    assert sizes(schedule.turn()) == [[0], [1]]


def test_tiles_of_a_stopped_run_are_not_sent():
    """The rest of its block goes with it; other runs go on."""
    schedule, (bad, _) = scheduled(Work([block(0, 8)]), Work([block(0, 1)]))
    assert sizes(schedule.turn()) == [[0], [1]]
    bad.error = LookupError("no")
    for number in range(2):
        schedule.answered(bad, block(number, 1))
    assert sizes(schedule.turn()) == [[0]]


def test_a_block_without_a_result_says_nothing_about_the_next():
    """It failed or was aborted, so its time is not that of its tiles."""
    schedule, (run,) = scheduled(Work([block(0, 8)]))
    assert sizes(schedule.turn()) == [[0], [1]]
    schedule.answered(run, block(0, 1))
    assert sizes(schedule.turn()) == [[2]]
