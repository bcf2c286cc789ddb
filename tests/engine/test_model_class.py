"""What the registries ask of vLLM, asked of vLLM's real ModelConfig."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vllm_mmout.errors import OptionError, RegistrationError
from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.registry import OutputRegistry

pytestmark = pytest.mark.engine
ROOT = Path(__file__).resolve().parents[2]
LLAMA = "vllm.model_executor.models.llama"


class Mask(OutputProcessor):
    def __init__(self, threshold=0.5):
        self.threshold = threshold


@pytest.fixture(scope="module")
def llama_config(tmp_path_factory):
    """Makes vLLM's ModelConfig of a small Llama, with further entries for its config.json."""
    from transformers import LlamaConfig
    from vllm.config import ModelConfig

    def make(architecture="LlamaForCausalLM", **entries):
        folder = tmp_path_factory.mktemp("llama")
        LlamaConfig(
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            vocab_size=32,
            architectures=[architecture],
            **entries,
        ).save_pretrained(folder)
        return ModelConfig(model=str(folder), skip_tokenizer_init=True)

    return make


@pytest.fixture(scope="module")
def text(llama_config):
    """A model config that says nothing of processors."""
    return llama_config()


def test_text_model_keeps_vllms_own_class(text):
    """For a text model the registry gives vLLM's own output processor, the class object itself."""
    from vllm.v1.engine.output_processor import OutputProcessor as VllmOutputProcessor

    assert OutputRegistry().create_output_processor(text) is VllmOutputProcessor
    assert OutputRegistry().create_output_processor() is VllmOutputProcessor


def test_a_plugin_that_is_left_out_is_named(monkeypatch):
    """A registry that no engine is connected to says which plugin VLLM_PLUGINS lacks."""
    monkeypatch.setattr(OutputRegistry, "_engine", None)
    monkeypatch.setattr("vllm.plugins.load_general_plugins", lambda: None)
    with pytest.raises(RegistrationError, match="add vllm_mmout to VLLM_PLUGINS"):
        OutputRegistry().create_output_processor()


def test_architecture_table_serves(text):
    """A processor registered for the architecture is made, with the options of the engine argument."""
    registry = OutputRegistry()
    registry.register("LlamaForCausalLM", Mask)
    made = registry.create_output_processor(text)
    assert isinstance(made, Mask)
    assert made.threshold == 0.5
    assert registry.create_output_processor(text, engine_table={"threshold": 0.9}).threshold == 0.9


def test_engine_settings_are_known_and_kept_from_the_processor(text):
    """Settings of the engine in its table are no unknown options."""
    registry = OutputRegistry()
    registry.register("LlamaForCausalLM", Mask)
    assert registry.create_output_processor(text, engine_table={"decode_threads": 2}).threshold == 0.5
    with pytest.raises(OptionError, match=r"of the engine: decode_threads, "):
        registry.create_output_processor(text, engine_table={"x": 2})


def test_config_json_names_the_processor(llama_config):
    """Entries in a config.json that vLLM knows nothing of reach the registry."""
    model_config = llama_config(output_processor=f"{__name__}:Mask", mmout={"threshold": 0.2})
    assert OutputRegistry().create_output_processor(model_config).threshold == 0.2
    assert OutputRegistry().create_output_processor(model_config, engine_table={"threshold": 0.3}).threshold == 0.3


def test_decorated_class_in_the_model_registry(llama_config):
    """A class that is decorated and registered with vLLM, as plugins do, is found with its processor."""
    from vllm import ModelRegistry
    from vllm.model_executor.models.llama import LlamaForCausalLM

    from vllm_mmout.engine.model_class import model_class

    registry = OutputRegistry()

    @registry.register_output_processor(Mask)
    class DecoratedLlama(LlamaForCausalLM):
        pass

    ModelRegistry.register_model("DecoratedLlama", DecoratedLlama)
    try:
        model_config = llama_config("DecoratedLlama")
        assert model_class(model_config) is DecoratedLlama
        assert isinstance(registry.create_output_processor(model_config), Mask)
    finally:
        del ModelRegistry.models["DecoratedLlama"]


def test_class_of_vllm_that_somebody_decorated(text, monkeypatch):
    """A processor put on a class of vLLM itself is found, as the class must have been imported for that."""
    from vllm.model_executor.models.llama import LlamaForCausalLM

    from vllm_mmout.engine.model_class import model_class

    registry = OutputRegistry()
    monkeypatch.setattr(LlamaForCausalLM, "_output_processor_factories", {}, raising=False)
    registry.register_output_processor(Mask)(LlamaForCausalLM)
    assert model_class(text) is LlamaForCausalLM
    assert isinstance(registry.create_output_processor(text), Mask)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "LlamaForSequenceClassification"])
def test_text_models_of_vllm_are_not_imported(llama_config, architecture):
    """Asking for the processor of a text model of vLLM does not import the model's module, converted or not."""
    folder = llama_config(architecture).model
    code = (
        "import sys\n"
        "from vllm.config import ModelConfig\n"
        "from vllm_mmout.engine.model_class import choose, model_class\n"
        "from vllm_mmout.registry import MULTIMODAL_OUTPUT_REGISTRY\n"
        f"config = ModelConfig(model={folder!r}, skip_tokenizer_init=True)\n"
        "assert choose(MULTIMODAL_OUTPUT_REGISTRY, config) is None and model_class(config) is None\n"
        f"assert {LLAMA!r} not in sys.modules\n"
        "from vllm.model_executor.model_loader import get_model_architecture\n"
        "get_model_architecture(config)\n"
        f"print('control', {LLAMA!r} in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip().endswith("control True"), done.stderr


def test_architectures_of_a_config_without():
    """A config.json without architectures, or with null, counts as one with an empty list."""
    from types import SimpleNamespace

    from vllm_mmout.engine.model_class import architectures_of

    assert architectures_of(SimpleNamespace(hf_config=SimpleNamespace())) == []
    assert architectures_of(SimpleNamespace(hf_config=SimpleNamespace(architectures=None))) == []
