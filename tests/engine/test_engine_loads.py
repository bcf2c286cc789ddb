"""Which engine gets the next batch: the one with the fewest tiles."""

from __future__ import annotations

from vllm_mmout.engine.scene.engine_loads import EngineLoads


def test_the_engine_with_the_fewest_tiles_gets_the_batch():
    """Tiles count from when their batch is given out until each is answered."""
    loads = EngineLoads(3)
    assert [loads.take(4), loads.take(2), loads.take(4)] == [0, 1, 2]
    assert loads.take(4) == 1
    assert loads.tiles == [4, 6, 4]
    for _ in range(3):
        loads.give(2)
    assert loads.take(1) == 2
    assert loads.tiles == [4, 6, 2]


def test_engines_without_work_take_turns():
    """Scenes of one batch each do not all go to the first engine."""
    loads = EngineLoads(3, first=2)
    for expected in (2, 0, 1, 2):
        engine = loads.take(1)
        assert engine == expected
        loads.give(engine)


def test_one_engine_gets_all():
    """As on most machines."""
    loads = EngineLoads(1)
    assert [loads.take(4) for _ in range(3)] == [0, 0, 0]


def test_engines_without_a_tile_are_idle():
    """Until each of their tiles is answered they are not."""
    loads = EngineLoads(2)
    assert loads.idle == 2
    loads.take(2)
    assert loads.idle == 1
    loads.give(0)
    assert loads.idle == 1
    loads.give(0)
    assert loads.idle == 2
