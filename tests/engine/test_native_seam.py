"""On a vLLM that was patched by ``patches/``: its own seam does what hooks do elsewhere (``make test-patches``)."""

from __future__ import annotations

import os

import numpy as np
import pytest
import vllm.multimodal
from scenes_for_tests import pixels
from vllm.entrypoints.pooling.offline import PoolingOfflineMixin
from vllm.v1.engine import output_processor
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.engine.output_processor import OutputProcessor

from vllm_mmout.engine.hooks.hook_table import SEAM, hooks
from vllm_mmout.engine.hooks.install import _installed, install, is_native
from vllm_mmout.registry import MULTIMODAL_INPUT_REGISTRY, MULTIMODAL_OUTPUT_REGISTRY

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif("MMOUT_TEST_PATCHED" not in os.environ, reason="of a patched vLLM: make test-patches"),
]


def test_nothing_is_installed_at_the_patched_points(llm):
    """Rows of the seam are native, their targets are vLLM's own functions, and so are the names of the registries."""
    install()
    native = {row.name for row in hooks() if is_native(row)}
    assert native == {"AsyncLLM.__init__", "LLMEngine.__init__", "PoolingOfflineMixin.__init__"}
    assert not [target for target in _installed if any(target.endswith(f".{name}") for name in native)]
    for owner in (AsyncLLM, LLMEngine, PoolingOfflineMixin):
        assert owner.__init__.__module__ == owner.__module__
        assert not hasattr(owner.__init__, "__wrapped__")
    assert "MULTIMODAL_OUTPUT_REGISTRY" not in vars(vllm.multimodal)
    assert vllm.multimodal.MULTIMODAL_OUTPUT_REGISTRY is MULTIMODAL_OUTPUT_REGISTRY
    assert vllm.multimodal.MULTIMODAL_INPUT_REGISTRY is MULTIMODAL_INPUT_REGISTRY
    assert hasattr(output_processor, SEAM.rpartition(".")[2])


def test_an_engine_is_made_with_its_output_processor(llm):
    """VLLM asked the registry, and the results are what they are elsewhere."""
    made = llm.llm_engine.output_processor
    assert isinstance(made, OutputProcessor)
    assert made.start_binding.model == made.binding.model
    scene = pixels(4, 64, 64)
    tiled, whole = (llm.generate(scene, use_tqdm=False)[0].outputs.array for _ in range(2))
    assert np.array_equal(tiled, whole)


class _FailsError(RuntimeError):
    pass


def test_an_error_in_one_output_ends_that_request_alone():
    """The queue of the request gets it, and the next output is processed."""
    from collections import deque
    from types import SimpleNamespace

    from vllm.v1.engine import EngineCoreOutput, FinishReason

    def fail(*args, **kwargs):
        raise _FailsError

    processor, told = OutputProcessor(None, log_stats=False), {name: deque() for name in "ab"}
    for name in "ab":
        processor.request_states[name] = SimpleNamespace(
            request_id=name, external_req_id=name, parent_req=None, is_prefilling=False, detokenizer=None,
            streaming_input=False, queue=SimpleNamespace(put=told[name].append), lora_name=None, stats=None,
            make_request_output=fail if name == "a" else lambda *args, **kwargs: SimpleNamespace(finished=True),
        )  # fmt: skip
        processor.external_req_ids[name].append(name)
    outputs = [EngineCoreOutput(name, [], finish_reason=FinishReason.ABORT) for name in "ab"]
    done = processor.process_outputs(outputs)
    assert isinstance(told["a"].pop(), _FailsError)
    assert told["b"].pop().finished
    assert (done.request_outputs, done.reqs_to_abort, processor.request_states) == ([], [], {})
