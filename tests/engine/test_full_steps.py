"""The engine's steps are full while there are tiles for it, however slowly tiles come."""

from __future__ import annotations

import time

import numpy as np
import pytest
from processors_for_tests import StepSize
from scenes_for_tests import TILE, pixels

from vllm_mmout import OutputParams
from vllm_mmout.engine.wire import BATCH
from vllm_mmout.engine.worker.core import WAITS_S
from vllm_mmout.models.inputs.raster_view import RasterView

pytestmark = [pytest.mark.engine, pytest.mark.timing]

ACROSS, DOWN = 8, 5
SCENE = pixels(3, DOWN * TILE, ACROSS * TILE)


@pytest.fixture(params=["llm", pytest.param("mp_llm", marks=pytest.mark.slow)])
def engine(request):
    """An ``LLM``, in this process and in processes of its own."""
    return request.getfixturevalue(request.param)


def steps(engine, scenes, **options):
    """How many tiles there were in the step of each tile, over all scenes."""
    params = OutputParams(processor=StepSize.__name__, tile=TILE, **options)
    results = engine.generate(scenes, params, use_tqdm=False)
    return np.concatenate([result.outputs.array[0, ::TILE, ::TILE].ravel() for result in results])


def full(engine):
    """Requests of a full step."""
    return engine.llm_engine.vllm_config.scheduler_config.max_num_seqs


def test_steps_are_full(engine):
    """Tiles run with as many others as a step has."""
    sizes = steps(engine, [SCENE])
    assert len(sizes) == ACROSS * DOWN
    assert np.median(sizes) == full(engine), "a busy machine holds up some of a batch for longer than the core waits"


def test_steps_are_full_though_tiles_come_slowly(engine, monkeypatch):
    """An engine that waits for the file does not run each tile alone as it comes."""
    windows = RasterView.windows

    def slow(self, asked):
        for seen in windows(self, asked):
            time.sleep(0.02)
            yield seen

    monkeypatch.setattr(RasterView, "windows", slow)
    sizes = steps(engine, [SCENE])
    assert np.median(sizes) == full(engine), "a busy machine holds up some of a batch for longer than the core waits"


def test_scenes_share_steps(engine):
    """Tiles of scenes that have fewer than a step run together with those of others."""
    small = [pixels(seed, TILE, 2 * TILE) for seed in range(4)]
    sizes = steps(engine, small)
    assert len(sizes) == 8
    assert sizes.max() == full(engine)


def test_a_batch_that_does_not_come_whole_is_waited_for_and_then_run(mp_llm, monkeypatch):
    """The engine's core gives up on the rest of a batch; what has come is right."""
    from vllm_mmout.engine.scene.schedule import Batch

    monkeypatch.setattr(Batch, "mark", property(lambda batch: [batch.number, len(batch.parts) + 5]))
    started = time.monotonic()
    result = mp_llm.generate(SCENE, OutputParams(tile=TILE), use_tqdm=False)[0]
    assert time.monotonic() - started > WAITS_S
    monkeypatch.undo()
    assert np.array_equal(result.outputs.array, mp_llm.generate(SCENE, OutputParams(), use_tqdm=False)[0].outputs.array)


def test_a_client_cannot_make_the_core_wait(llm):
    """A batch that a request was not given by ``generate`` is taken away."""
    from vllm.pooling_params import PoolingParams

    router, seen = llm.llm_engine.output_processor, []
    prompt = {"prompt_token_ids": [1], "multi_modal_data": {"image": pixels(1, 8, 8)}}
    params = PoolingParams(task="plugin", extra_kwargs={BATCH: [1, 1000]})
    add = router.add_request

    def watch(request, *args, **kwargs):
        add(request, *args, **kwargs)
        seen.append(request.pooling_params.extra_kwargs)

    router.add_request = watch
    try:
        llm.encode(prompt, pooling_params=params, pooling_task="plugin", use_tqdm=False)
    finally:
        del router.add_request
    assert seen == [{}]
