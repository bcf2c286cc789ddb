"""Scenes share a budget in turns, only so many run at once, and single inputs pass them."""

from __future__ import annotations

import threading
from collections import Counter

import numpy as np
import pytest
from scene_ends import settings, wait_for
from scene_steps import (  # noqa: F401 - fixtures
    DEADLINE,
    ECHO,
    GOOD,
    TILES,
    a_processor,
    an_engine,
    router_of,
)
from scenes_for_tests import TILE, classes
from water_oracle import echo, scene

from vllm_mmout import OutputParams
from vllm_mmout.engine.request import llm_call
from vllm_mmout.engine.scene.budgets import TileBudget

pytest.importorskip("rasterio", reason="it writes the scenes")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]


class Watched(TileBudget):
    """Remembers the most that was in flight, and how many tiles each reading thread has taken."""

    most: tuple[int, int] = (0, 0)

    def __init__(self, *limits):
        super().__init__(*limits)
        self.taken = Counter()

    def take(self, nbytes, stopped, count=1):
        """As its base."""
        taken = super().take(nbytes, stopped, count)
        Watched.most = max(Watched.most[0], self.used_count), max(Watched.most[1], self.used_bytes)
        self.taken[threading.get_ident()] += count
        return taken

    def has_all_waiting(self, scenes, tiles):
        """Whether each thread that has not read all tiles of its scene waits for its turn."""
        ended = sum(count == tiles for count in [*self.taken.values()])
        return len(self._turns) == scenes - ended


@pytest.mark.parametrize(("limits", "most"), [({"max_tiles": 3}, 3), ({"max_tile_bytes": 2 * 32 * 32 * 6 * 2}, 2)])
def test_the_budget_is_kept(engine, monkeypatch, limits, most):
    """Three scenes together have no more tiles and bytes in flight than one may, and do use what they may."""
    monkeypatch.setattr(llm_call, "TileBudget", Watched)
    Watched.most = (0, 0)
    with settings(router_of(engine), **limits):
        results = engine.generate([GOOD] * 3, TILES, use_tqdm=False)
    assert Watched.most == (most, most * 32 * 32 * 6 * 2)
    for result in results:
        np.testing.assert_array_equal(result.outputs.array, classes(GOOD))


def test_scenes_take_turns(engine, processor):
    """Of two scenes with two tiles in flight between them, neither is more than a few tiles ahead.

    No tile is joined before both have begun, so that none has a start. A joined tile makes room only when both wait for
    it, so that the order is not that of the system's threads.
    """
    begun, order, budgets = [], [], []
    instance = processor(engine)
    join = type(instance).assemble

    def assemble(self, parts, params):
        begun.append(params.nodata)
        wait_for(lambda: len(begun) == 2, "both scenes have begun")
        parts._parts = noted(parts._parts, params.nodata)
        return join(self, parts, params)

    def noted(parts, scene):
        for part in parts:
            order.append(scene)
            yield part
            wait_for(lambda: budgets[0].has_all_waiting(2, 9), "both scenes wait for their turn")

    def watched(*limits):
        budgets.append(Watched(*limits))
        return budgets[0]

    with pytest.MonkeyPatch.context() as patch, settings(router_of(engine), max_tiles=2):
        patch.setattr(instance, "assemble", assemble.__get__(instance), raising=False)
        patch.setattr(llm_call, "TileBudget", watched)
        engine.generate([GOOD, GOOD], [OutputParams(tile=TILE, nodata=n) for n in (1.0, 2.0)], use_tqdm=False)
    assert sorted(order) == [1.0] * 9 + [2.0] * 9
    lead = np.cumsum([1 if name == 1.0 else -1 for name in order])
    assert np.abs(lead).max() <= 4, order


def test_only_so_many_scenes_at_once_and_single_inputs_pass_them(engine, processor):
    """The scenes of a call wait for its last input to be done, which therefore is not stuck behind them."""
    running, most, done = set(), [], []
    instance = processor(engine)
    join, decode = type(instance).assemble, processor(engine, "Echo").decode

    def assemble(self, parts, params):
        running.add(id(parts))
        most.append(len(running))
        wait_for(lambda: done, "the single input is done")
        output = join(self, parts, params)
        running.discard(id(parts))
        return output

    def decodes(self, raw, params, state=None):
        done.append(True)
        return decode(raw, params, state)

    processor(engine, "Echo", decode=decodes)
    with (
        pytest.MonkeyPatch.context() as patch,
        settings(router_of(engine), max_scenes=2, max_tiles=4, decode_timeout_s=DEADLINE),
    ):
        patch.setattr(instance, "assemble", assemble.__get__(instance), raising=False)
        results = engine.generate([*[GOOD] * 5, scene(4)], [*[TILES] * 5, ECHO], use_tqdm=False)
    assert max(most) == 2
    assert results[5].outputs == echo(scene(4))
    for result in results[:5]:
        np.testing.assert_array_equal(result.outputs.array, classes(GOOD))
