"""vLLM's measurement of memory, which devices other than the CPU start with: the largest batch, once."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.engine


@pytest.fixture
def runner(llm):
    """The model runner of the engine in this process, whose class is that of GPUs with a few methods of its own."""
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


def test_the_largest_batch_is_measured(runner, monkeypatch):
    """The model runs once, on as many inputs of the largest size as a step can hold, and the pooler on what it gave."""
    from vllm_mmout.models import single_pass

    batches = []
    run = single_pass.run
    monkeypatch.setattr(single_pass, "run", lambda model, alike: batches.append(alike) or run(model, alike))
    runner.profile_run()
    (batch,) = batches
    assert len(batch) == runner.max_num_reqs == runner.max_num_tokens
    assert {tensors["pixel_values"].shape for tensors in batch} == {(6, 1024, 1024)}


def test_requests_are_answered_after_it(runner, llm):
    """Nothing of the dummies is left."""
    runner.profile_run()
    (result,) = llm.generate(np.zeros((6, 8, 8), np.uint16), use_tqdm=False)
    assert result.outputs is not None
