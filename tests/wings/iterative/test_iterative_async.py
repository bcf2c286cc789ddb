"""An iterative model behind ``AsyncLLM``, in processes of its own: what comes before the result, and who leaves."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from iterative_models import LabelFlow, alone
from model_folders import ENGINE, config_of, folder_of

from vllm_mmout import OutputParams

pytestmark = pytest.mark.engine


def test_previews_and_leavers(tmp_path):
    """Previews come in order with their steps, none lost to a slow consumer; one who leaves disturbs nobody."""
    folder, weights = folder_of(tmp_path / "flow", LabelFlow)
    model = LabelFlow(config_of(LabelFlow))
    model.load_state_dict(weights)
    asyncio.run(_all(folder, model))


async def _all(folder, model):
    from quick_engines import quick_engines
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    with quick_engines():
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=folder, **ENGINE))
    try:
        leaving = engine.generate(1, OutputParams(num_inference_steps=900, partial_images=3))
        await anext(leaving)
        answers = await asyncio.gather(*(_answer(engine, model, seed, slow=seed == 2) for seed in range(6)))
        await leaving.aclose()
        assert answers == [[(4, 0), (8, 1), (12, 2)]] * 6
        assert engine.output_processor.get_num_unfinished_requests() == 0
    finally:
        engine.shutdown()


async def _answer(engine, model, seed, *, slow):
    """The steps and numbers of the previews, after each was compared with what plain PyTorch has then."""
    shown = []
    async for result in engine.generate(2, OutputParams(num_inference_steps=16, seed=seed, partial_images=3)):
        if slow:
            await asyncio.sleep(0.3)
        done = 16 if result.finished else result.progress.done
        np.testing.assert_allclose(result.outputs.array, alone(model, 2, 16, seed, done), atol=1e-5)
        if not result.finished:
            assert result.progress.total == 16
            shown.append((done, result.progress.partial_index))
    assert result.finished
    return shown
