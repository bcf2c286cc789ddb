"""On a vLLM that has drifted, text works as ever, and whatever needs a hook says which one is missing."""

from __future__ import annotations

from pathlib import Path

import engine_scripts
import pytest

from vllm_mmout.errors import HookError
from vllm_mmout.models import config as models_config

pytestmark = pytest.mark.engine

DRIFTED = Path(engine_scripts.__file__).parent / "drifted"
FAULTS = (
    (
        "vllm.v1.engine.output_processor.RequestState.make_request_output has no parameter"
        " new_token_ids, pooling_output, finish_reason"
    ),
    "vllm.v1.worker.worker_base.WorkerWrapperBase.init_device",
)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A small Llama's folder."""
    return engine_scripts.make_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def answer(llama, water_index):
    """What happened with a vLLM that has drifted in every process of its engine."""
    return engine_scripts.run("drifted", path=[DRIFTED], model=llama, routed_model=water_index)


def greedy(model):
    """Tokens and text of ``transformers`` for the prompts of the script."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    network, tokenizer = AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    for prompt in engine_scripts.PROMPTS:
        words = tokenizer(prompt, return_tensors="pt")
        made = network.generate(
            words.input_ids,
            attention_mask=words.attention_mask,
            do_sample=False,
            min_new_tokens=16,
            max_new_tokens=16,
            eos_token_id=None,
            pad_token_id=0,
        )
        yield made[0, words.input_ids.shape[1] :].tolist()


@pytest.mark.slow
def test_text_generation_starts_and_works(answer, llama):
    """The engine of a text model starts and generates what ``transformers`` does, with nothing of us installed."""
    assert [[tokens for tokens, _ in outputs] for outputs in answer["said"]] == [[one] for one in greedy(llama)]
    assert answer["again"] == answer["said"]
    assert answer["vllms_class"]
    assert answer["installed"] == []


@pytest.mark.slow
@pytest.mark.parametrize("attempt", ["install", "LLM", "AsyncLLM"])
def test_what_needs_a_hook_names_the_drift(answer, attempt):
    """``install()`` and the first engine whose model needs a processor raise an error with targets and version."""
    import vllm

    kind, message = answer["errors"][attempt]
    assert kind == "HookError"
    for fault in FAULTS:
        assert fault in message
    assert f"vLLM {vllm.__version__}" in message


@pytest.mark.slow
def test_one_line_is_logged_in_a_process(answer):
    """Frontend, engine core and worker each log the drift in one line."""
    lines = [line for line in answer["log"].splitlines() if "differs from what vllm_mmout's hooks were written" in line]
    lines = [line for line in lines if not line.startswith(engine_scripts.ANSWER)]
    ours = [line for line in lines if "Error parsing config" not in line]  # vLLM's own, for the folder that is refused
    assert len(ours) == 3, answer["log"]
    assert all(FAULTS[1] in line for line in ours)


def test_config_of_our_folders_raises_where_vllm_has_drifted(water_index, monkeypatch):
    """A folder of ours is refused when its config is read; without a drift the same folder is read."""
    from transformers import AutoConfig

    models_config.register_config()
    assert AutoConfig.from_pretrained(water_index).model_type == "mmout"
    monkeypatch.setattr(models_config, "_unservable", HookError("drifted in a test"))
    with pytest.raises(HookError, match="drifted in a test"):
        AutoConfig.from_pretrained(water_index)
