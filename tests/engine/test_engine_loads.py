"""The engine for the next block, and the number of tiles in it."""

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
    assert loads.idle
    taken(loads, 4)
    assert loads.has_room()
    assert not loads.has_room(gives_way=True)
    taken(loads, 4)
    assert not loads.has_room()
    loads.give(0, 4, block=True)
    assert loads.has_room()
    loads.give(0, 4, block=True)
    assert loads.has_room(gives_way=True)


def measured(answers, *, gives_way=False, clock=None):
    """The size of the next block after answers of (tiles, seconds, bytes), one after the other."""
    now = [0.0]
    loads = EngineLoads(1, 8, clock=lambda: now[0])
    for count, seconds, nbytes in answers:
        taken(loads, count)
        now[0] += seconds
        loads.give(0, count, block=True, nbytes=nbytes)
    return loads.block_size(gives_way=gives_way)


def test_blocks_grow_from_one_tile_and_at_most_double():
    """A model that costs nothing gets twice the tiles of the largest block that it has answered."""
    assert measured([]) == 1
    assert measured([(1, 0.0, 1)]) == 2
    assert measured([(1, 0.0, 1), (2, 0.0, 1), (4, 0.0, 1)]) == 8


def test_a_block_takes_fifty_milliseconds():
    """The time of a tile is measured; a slow model gets its tiles one by one."""
    assert measured([(4, 0.02, 1)] * 3) == 8  # 10 tiles, but at most twice 4
    assert measured([(8, 0.08, 1)] * 3) == 5
    assert measured([(1, 3.0, 1)]) == 1


def test_a_slow_start_of_a_model_is_forgotten():
    """The first forward may compile kernels."""
    assert measured([(1, 2.0, 1), *[(1, 0.001, 1)] * 20]) == 2


def test_the_answer_to_a_block_stays_small():
    """Results of 16 MiB a tile are asked for by four tiles."""
    assert measured([(4, 0.0, 64 << 20)]) == 4


def test_blocks_are_smaller_beside_single_requests():
    """A quarter, and at least a tile."""
    assert measured([(8, 0.0, 1)], gives_way=True) == 4
    assert measured([], gives_way=True) == 1


def test_an_answer_without_a_result_is_not_measured():
    """A failed or aborted block says nothing about the model."""
    assert measured([(4, 0.001, 1), (4, 9.0, 0)]) == 8
