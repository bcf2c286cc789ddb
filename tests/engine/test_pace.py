"""The number of tiles in the next block of a run."""

from __future__ import annotations

from vllm_mmout.engine.scene.pace import Pace


def measured(answers, *, gives_way=False):
    """The size of the next block after answers of (tiles, seconds, bytes), one after the other."""
    pace = Pace()
    for answer in answers:
        pace.add(*answer)
    return pace.block_size(gives_way=gives_way)


def test_blocks_grow_from_one_tile_and_at_most_double():
    """A model that costs nothing gets twice the tiles of the largest block that it has answered."""
    assert measured([]) == 1
    assert measured([(1, 0.0, 1)]) == 2
    assert measured([(1, 0.0, 1), (2, 0.0, 1), (4, 0.0, 1)]) == 8


def test_a_block_takes_fifty_milliseconds():
    """The time of a tile is measured; a slow model gets its tiles one by one."""
    assert measured([(4, 0.02, 1)] * 3) == 8  # 10 tiles, but at most twice 4
    assert measured([(8, 0.079, 1)] * 3) == 5
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
