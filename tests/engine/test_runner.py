"""Which models are kept from Model Runner V2: the method that vLLM asks, on configs that vLLM made."""

from __future__ import annotations

import engine_scripts
import pytest

pytestmark = pytest.mark.engine

RAW, BOUND = "models with raw multimodal inputs", "plugin poolers"
TENSOR = {"mmout": {"output_processor": "tensor"}}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A small Llama's folder."""
    return engine_scripts.make_llama(tmp_path_factory.mktemp("llama"))


def config_of(model, **arguments):
    """A model's config as vLLM makes it, which loads the plugin, which installs the hooks."""
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(model=model, max_model_len=8, **arguments).create_engine_config()


def unsupported(config):
    """What vLLM gathers before it chooses the runner."""
    return config._get_v2_model_runner_unsupported_features()


def test_models_with_raw_inputs(water_index):
    """A model that takes raw tensors needs Model Runner V1, bound or not."""
    for table in (None, "none", "tensor"):
        additional = {"mmout": {"output_processor": table}} if table else {}
        assert unsupported(config_of(water_index, additional_config=additional)) == [RAW]


def test_bound_pooling_models(llama):
    """So does a pooling model that an output processor is chosen for."""
    assert unsupported(config_of(llama, runner="pooling", additional_config=TENSOR)) == [BOUND]


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


def test_what_vllm_finds_itself_stays(llama, monkeypatch):
    """What vLLM itself lists stays in the list, before ours."""
    config = config_of(llama, runner="pooling", additional_config=TENSOR)
    monkeypatch.setattr(config.parallel_config, "distributed_executor_backend", "external_launcher")
    monkeypatch.setattr(config.parallel_config, "pipeline_parallel_size", 2)
    assert unsupported(config) == ["pipeline parallelism with external_launcher", BOUND]


def test_vllm_falls_back_by_itself(water_index, llama, monkeypatch):
    """Where Triton is, vLLM takes Model Runner V2 for text and falls back to V1 for a model that needs it."""
    from vllm.config import vllm as module

    raw, text = config_of(water_index), config_of(llama)
    monkeypatch.setattr(module, "HAS_TRITON", True)
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    assert text.use_v2_model_runner
    assert not raw.use_v2_model_runner


def test_configs_without_a_model():
    """A config without a model, as vLLM makes for some tests of its own, needs nothing."""
    from types import SimpleNamespace

    from vllm_mmout.engine.hooks.bind import v1_only_features

    assert v1_only_features(SimpleNamespace(model_config=None)) == []
