"""The engine for the next block."""

from __future__ import annotations

from vllm_mmout.engine.scene.engine_loads import EngineLoads


def tiles(loads):
    """The tiles in flight in each engine."""
    return [load.tiles for load in loads.loads]


def taken(loads, *counts):
    """The engines of blocks with some numbers of tiles."""
    return [loads.take(count, block=True) for count in counts]


def test_the_engine_with_the_fewest_tiles_gets_the_block():
    """Tiles count from when their block is given out until it is answered."""
    loads = EngineLoads(3, 8)
    assert taken(loads, 4, 2, 4, 4) == [0, 1, 2, 1]
    assert tiles(loads) == [4, 6, 4]
    loads.give(2, 4, block=True)
    assert taken(loads, 1) == [2]
    assert tiles(loads) == [4, 6, 1]


def test_engines_without_work_take_turns():
    """Scenes of one block each do not all go to the first engine."""
    loads = EngineLoads(3, 8, first=2)
    for expected in (2, 0, 1, 2):
        assert taken(loads, 1) == [expected]
        loads.give(expected, 1, block=True)


def test_an_engine_has_two_blocks_in_flight():
    """While it computes one, the other is sent."""
    loads = EngineLoads(1, 8)
    assert loads.has_room(gives_way=True)
    taken(loads, 4)
    assert loads.has_room()
    assert not loads.has_room(gives_way=True)
    taken(loads, 4)
    assert not loads.has_room()
    loads.give(0, 4, block=True)
    assert loads.has_room()
    loads.give(0, 4, block=True)
    assert loads.has_room(gives_way=True)


def test_an_answer_takes_the_time_since_the_one_before():
    """Or since the engine began to work, if it was idle."""
    now = [0.0]
    loads = EngineLoads(1, 8, clock=lambda: now[0])
    now[0] = 5.0
    taken(loads, 1, 1)
    now[0] = 6.0
    assert loads.give(0, 1, block=True) == 1.0
    now[0] = 6.5
    assert loads.give(0, 1, block=True) == 0.5
