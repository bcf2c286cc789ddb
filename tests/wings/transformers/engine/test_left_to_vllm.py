"""Which folders of transformers are left to vLLM, and what errors of vLLM then say."""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from types import SimpleNamespace

import pytest
from model_folders import says
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.models.registry import ModelRegistry

from vllm_mmout.engine.hooks.defaults import fill_in
from vllm_mmout.engine.hooks.unserved_folders import naming_the_argument, remedy
from vllm_mmout.errors import ModelError
from vllm_mmout.models.folder_parser import FORMAT
from vllm_mmout.models.vllm_registry import withdraw
from vllm_mmout.serving.routes import ServingPlugin

pytestmark = pytest.mark.engine
LEFT = {
    "BertForMaskedLM": "bert",
    "BertForSequenceClassification": "bert",
    "BertForTokenClassification": "bert",
    "BertModel": "bert",
    "GPT2ForSequenceClassification": "gpt2",
    "LlamaForSequenceClassification": "llama",
    "Qwen2ForTokenClassification": "qwen2",
}
"""Architecture -> model type of what vLLM's registry names, or converts from a language model that it names."""
TAKEN = {
    "BertForMultipleChoice": "bert",
    "BertForNextSentencePrediction": "bert",
    "BertForQuestionAnswering": "bert",
    "CLIPModel": "clip",
    "DistilBertForMaskedLM": "distilbert",
    "ElectraForSequenceClassification": "electra",
    "GPT2ForTokenClassification": "gpt2",
    "LlamaForQuestionAnswering": "llama",
    "RobertaForMaskedLM": "roberta",
    "SiglipModel": "siglip",
    "ViTForImageClassification": "vit",
}
"""Architecture -> model type of heads that vLLM does not serve."""
ARGUMENT = '{"mmout": {"output_processor": "transformers"}}'


@pytest.fixture
def filled_in(tmp_path):
    """Fill in the engine arguments of a folder, and undo what that registers."""
    served = []

    def fill(architecture, model_type, **arguments):
        config = {"architectures": [architecture], "model_type": model_type}
        (tmp_path / "config.json").write_text(json.dumps(config))
        engine_args = EngineArgs(str(tmp_path), **arguments)
        fill_in(engine_args)
        served.append(architecture)
        return engine_args

    yield fill
    for architecture in served:
        withdraw(architecture, converted=True)


@pytest.mark.parametrize("architecture", [*LEFT, *TAKEN])
def test_a_head_that_vllm_serves_is_left_to_it(architecture, filled_in):
    """Other heads are taken with the folder alone, and these heads with the engine argument."""
    model_type = (LEFT | TAKEN)[architecture]
    alone = filled_in(architecture, model_type)
    assert (alone.config_format != FORMAT) == (architecture in LEFT)
    assert (remedy(alone.model) is not None) == (architecture in LEFT)
    named = filled_in(architecture, model_type, additional_config=json.loads(ARGUMENT))
    assert named.config_format == FORMAT
    assert remedy(named.model) is None


@pytest.mark.parametrize("argument", [{"runner": "pooling"}, {"convert": "embed"}, {"model_impl": "transformers"}])
def test_a_folder_is_vllms_if_the_arguments_say_how_it_is_used(argument, filled_in):
    """CLIP gives vectors by vLLM's own class if its way to run is named; vLLM has no class for a ViT."""
    assert filled_in("CLIPModel", "clip", **argument).config_format == "auto"
    assert filled_in("ViTModel", "vit", runner="pooling").config_format == FORMAT


def test_what_sentence_transformers_wrote_is_left_to_vllm(filled_in, tmp_path):
    """Its vectors are wanted, whatever head its config.json names."""
    pooling = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    (tmp_path / "modules.json").write_text(json.dumps([pooling]))
    for architecture, model_type in (("RobertaForMaskedLM", "roberta"), ("ElectraModel", "electra")):
        assert filled_in(architecture, model_type).config_format == "auto"


def test_arguments_that_are_filled_in_twice_are_taken_twice(filled_in):
    """A command line checks the arguments before it starts an engine by them."""
    engine_args = filled_in("CLIPModel", "clip")
    fill_in(engine_args)
    assert engine_args.config_format == FORMAT
    assert engine_args.runner == "pooling"


def test_a_folder_is_left_to_vllm_after_ours_has_served_it(filled_in):
    """Nothing of ours stays in vLLM's registry, also for an architecture that vLLM has no class of, but converts."""
    before = dict(ModelRegistry.models)
    for architecture in ("BertForSequenceClassification", "LlamaForSequenceClassification"):
        filled_in(architecture, "any", additional_config=json.loads(ARGUMENT))
        assert ModelRegistry.models.get(architecture) != before.get(architecture)
        filled_in(architecture, "any")
        assert ModelRegistry.models.get(architecture) == before.get(architecture)


def test_an_error_of_vllms_start_names_the_argument(filled_in):
    """The error has vLLM's own reason, too. An error of a model that no wing could serve is unchanged."""
    model = filled_in("BertForSequenceClassification", "bert").model
    with pytest.raises(ModelError) as raised, naming_the_argument(model):
        raise ValueError("no module or parameter named 'score'")
    says(raised.value, model, "ValueError: no module or parameter named 'score'", ARGUMENT, "--additional-config")
    with pytest.raises(ValueError, match="no memory"), naming_the_argument("another"):
        raise ValueError("no memory")


def test_a_server_of_a_folder_that_is_left_to_vllm_names_the_argument(filled_in):
    """Its routes of images say what the server would need."""
    model = filled_in("BertForSequenceClassification", "bert").model
    state = SimpleNamespace()
    engine = SimpleNamespace(model_config=SimpleNamespace(model=model))
    asyncio.run(ServingPlugin().init_state(engine, state, Namespace()))
    says(state.mmout, "no output processor", ARGUMENT)
