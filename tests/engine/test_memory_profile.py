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
    batches, forward = [], runner.model._forward
    monkeypatch.setattr(runner.model, "_forward", lambda batch: batches.append(batch) or forward(batch))
    runner.profile_run()
    (batch,) = batches
    assert runner.max_num_reqs == runner.max_num_tokens
    assert batch["pixel_values"].shape == (runner.max_num_reqs, 6, 1024, 1024)


def test_requests_are_answered_after_it(runner, llm):
    """Nothing of the dummies is left."""
    runner.profile_run()
    (result,) = llm.generate(np.zeros((6, 8, 8), np.uint16), use_tqdm=False)
    assert result.outputs is not None


def test_a_model_that_does_not_fit_ends_the_start(runner, monkeypatch):
    """While memory is measured a failing batch is raised, and names what to lower; later it is the requests' own."""
    import torch

    from vllm_mmout.errors import ModelError

    def too_much(alike):
        raise ModelError("out of memory") from torch.OutOfMemoryError("no")

    assert not runner.model.measuring, "the engine has started"
    monkeypatch.setattr(runner.model, "_forward", too_much)
    runner.profile_run()
    monkeypatch.setattr(runner.model, "measuring", True)
    with pytest.raises(ModelError, match=rf"out of memory\. .* {runner.max_num_reqs}: .* lower max_num_seqs"):
        runner.profile_run()
