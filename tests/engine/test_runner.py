"""Which models are kept from Model Runner V2: the method that vLLM asks, on configs that vLLM made."""

from __future__ import annotations

import os
from types import SimpleNamespace

import engine_scripts
import pytest
import torch

pytestmark = pytest.mark.engine

SECOND = os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1"
RAW = "models with raw multimodal inputs"
TENSOR = {"mmout": {"output_processor": "tensor"}}
NONE = {"mmout": {"output_processor": "none"}}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A small Llama's folder."""
    return engine_scripts.make_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def _free(monkeypatch):
    """VLLM chooses the runner."""
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)


def config_of(model, **arguments):
    """A model's config as vLLM makes it, which loads the plugin, which installs the hooks."""
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(model=model, max_model_len=8, **arguments).create_engine_config()


def unsupported(config):
    """What vLLM gathers before it chooses the runner."""
    return config._get_v2_model_runner_unsupported_features()


@pytest.mark.usefixtures("_free")
def test_models_with_raw_inputs(water_index):
    """A bound model runs on Model Runner V2; one that is left to vLLM needs V1, which has its pooler."""
    for table, found in ((None, []), ("tensor", []), ("none", [RAW])):
        additional = {"mmout": {"output_processor": table}} if table else {}
        assert unsupported(config_of(water_index, additional_config=additional)) == found


def test_bound_pooling_models(llama):
    """So does a pooling model that an output processor is chosen for."""
    assert unsupported(config_of(llama, runner="pooling", additional_config=TENSOR)) == []


def test_pooling_models_of_text(llama):
    """A pooling model without a processor keeps the runner that vLLM chooses."""
    assert unsupported(config_of(llama, runner="pooling")) == []
    switched_off = {"mmout": {"output_processor": "none"}}
    assert unsupported(config_of(llama, runner="pooling", additional_config=switched_off)) == []


def test_token_models_never(llama, monkeypatch):
    """A model that generates tokens is never kept from it, with a processor named or not, and nothing is looked up."""
    configs = [config_of(llama), config_of(llama, additional_config=TENSOR)]
    monkeypatch.setattr("vllm_mmout.engine.hooks.bind.resolve_choice", lambda config: pytest.fail("looked up"))
    assert [unsupported(config) for config in configs] == [[], []]


def test_wrong_options_are_left_to_the_engine(llama):
    """An option that is wrong is reported where the engine is made, not by this question."""
    config = config_of(llama, runner="pooling", additional_config={"mmout": {"output_processor": "tensr"}})
    assert unsupported(config) == []


@pytest.mark.usefixtures("_free")
def test_what_vllm_finds_itself_stays(water_index, monkeypatch):
    """What vLLM itself lists stays in the list, before ours."""
    config = config_of(water_index, additional_config=NONE)
    monkeypatch.setattr(config.parallel_config, "distributed_executor_backend", "external_launcher")
    monkeypatch.setattr(config.parallel_config, "pipeline_parallel_size", 2)
    assert unsupported(config) == ["pipeline parallelism with external_launcher", RAW]


@pytest.mark.usefixtures("_free")
def test_vllm_chooses_by_itself(water_index, llama, monkeypatch):
    """Where Triton is, vLLM takes Model Runner V2 for text and for our models, without a word of what it lacks."""
    from vllm.config import vllm as module

    configs = [config_of(llama), config_of(water_index), config_of(water_index, additional_config=NONE)]
    monkeypatch.setattr(module, "HAS_TRITON", True)
    assert [config.use_v2_model_runner for config in configs] == [True, True, False]


def test_the_runner_of_an_engine(llm):
    """``make test-v2`` runs on Model Runner V2 indeed, and other tests on V1, as on any machine without Triton."""
    (found,) = llm.collective_rpc(lambda worker: type(worker.model_runner).__module__)
    assert found == ("vllm.v1.worker.cpu.model_runner" if SECOND else "vllm.v1.worker.cpu_model_runner")


@pytest.mark.skipif(not SECOND, reason="of Model Runner V2: make test-v2")
def test_dummies_measure_memory(llm):
    """A step that is only measured has as many inputs of the largest size as it has requests."""

    def shapes(worker):
        runner = worker.model_runner
        made = runner.model_state.prepare_dummy_inputs(3, 3)
        warming = SimpleNamespace(req_ids=["_warmup_0_"] * 3, num_tokens=6)
        runner.model_state.add_request(0, SimpleNamespace(req_id="_warmup_0_", mm_features=[]))
        assert [*runner.model_state.prepare_inputs(warming, None)] == [*made]  # vLLM's own requests have no inputs
        runner.model_state.remove_request("_warmup_0_")
        outputs = runner.model(input_ids=None, positions=torch.zeros(3), **made)
        return [[list(tensor.shape) for tensor in one] for (one, *_) in made.values()], list(outputs.shape)

    (found,) = llm.collective_rpc(shapes)
    assert found == ([[[6, 1024, 1024]]], [3, 2, 1024, 1024])


def test_configs_without_a_model():
    """A config without a model, as vLLM makes for some tests of its own, needs nothing."""
    from vllm_mmout.engine.hooks.bind import v1_only_features

    assert v1_only_features(SimpleNamespace(model_config=None)) == []
