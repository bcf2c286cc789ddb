"""The number of tiles in the next block of a run."""

from __future__ import annotations

from vllm_mmout.engine.scene.pace import Pace, Paces


def measured(answers, *, gives_way=False):
    """The size of the next block after answers of (tiles, seconds, bytes), one after the other."""
    pace = Pace()
    for answer in answers:
        pace.add(*answer)
    return pace.block_size(gives_way=gives_way)


def test_blocks_grow_from_one_tile_and_at_most_fourfold():
    """A model that costs nothing gets four times the tiles of the largest block that it has answered."""
    assert measured([]) == 1
    assert measured([(1, 0.0, 1)]) == 4
    assert measured([(1, 0.0, 1), (4, 0.0, 1), (16, 0.0, 1)]) == 64


def test_a_block_takes_fifty_milliseconds():
    """The time of a tile is measured; a slow model gets its tiles one by one."""
    assert measured([(1, 0.01, 1)] * 3) == 4  # 5 tiles, but at most 4 times 1
    assert measured([(8, 0.079, 1)] * 3) == 5
    assert measured([(1, 3.0, 1)]) == 1


def test_a_slow_start_of_a_model_is_forgotten():
    """The first forward may compile kernels."""
    assert measured([(1, 2.0, 1), *[(1, 0.001, 1)] * 20]) == 4


def test_the_answer_to_a_block_stays_small():
    """Results of 16 MiB a tile are asked for by four tiles."""
    assert measured([(4, 0.0, 64 << 20)]) == 4


def test_blocks_are_smaller_beside_single_requests():
    """A quarter, and at least a tile."""
    assert measured([(8, 0.0, 1)], gives_way=True) == 8
    assert measured([], gives_way=True) == 1


def test_a_pause_of_the_engine_is_forgotten():
    """A block that waited for ten minutes counts as half a second."""
    assert measured([(16, 0.001, 1), (16, 600.0, 1), *[(1, 0.001, 1)] * 10]) > 8


def test_the_largest_result_of_a_tile_counts():
    """A scene with many boxes may follow one without any."""
    assert measured([(4, 0.0, 64 << 20), *[(4, 0.0, 4)] * 20]) == 4


def test_scenes_of_a_kind_share_what_was_measured():
    """A second scene begins with large blocks. Of many kinds, the ones that were used last are kept."""
    paces = Paces()
    paces.of("first").add(16, 0.001, 1)
    assert paces.of("first").block_size() == 64
    assert paces.of("second").block_size() == 1
    for other in range(62):
        paces.of(other)
    assert paces.of("first").block_size() == 64
    for other in range(62, 126):
        paces.of(other)
    assert paces.of("first").block_size() == 1
