"""LoRA adapters on a model that writes pictures."""

from __future__ import annotations

import json

import pytest
import torch
from model_folders import kept_engine
from safetensors.torch import save_file
from scripted_tokens import scripted
from token_models import ENGINE, image_model
from token_streams import PICTURE, TEXT, codes, of_text, seen
from vllm import SamplingParams
from vllm.lora.request import LoRARequest

pytestmark = pytest.mark.engine

RANK, WIDTH, LAYERS = 8, 64, 2


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """An adapter with random weights, large enough to change what is said."""
    folder = tmp_path_factory.mktemp("adapter")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config | {"task_type": "CAUSAL_LM"}))
    torch.manual_seed(5)
    names = [
        f"base_model.model.model.layers.{n}.self_attn.{one}" for n in range(LAYERS) for one in ("q_proj", "v_proj")
    ]
    weights = {f"{name}.lora_A.weight": torch.randn(RANK, WIDTH) for name in names}
    weights |= {f"{name}.lora_B.weight": torch.randn(WIDTH, RANK) for name in names}
    save_file(weights, folder / "adapter_model.safetensors")
    return LoRARequest("painting", 1, str(folder))


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """The bound engine of a model, and vLLM's own."""
    folder = image_model(tmp_path_factory.mktemp("lora") / "painter")
    arguments = {**ENGINE, "enable_lora": True, "max_lora_rank": RANK}
    bound = kept_engine(folder, **arguments)
    return bound, kept_engine(folder, additional_config={"mmout": {"output_processor": "none"}}, **arguments)


def test_requests_with_an_adapter_and_without(engines, adapter):
    """Their texts are vLLM's, token for token, and each has its picture."""
    text = SamplingParams(max_tokens=24, temperature=1.0, top_k=1, allowed_token_ids=TEXT)
    picture = scripted([*of_text("a "), *PICTURE.build((codes(2, 3),))])
    said = []
    for lora in (adapter, None):
        ours, theirs = (
            llm.generate(["draw"] * 2, [text, picture], lora_request=lora, use_tqdm=False) for llm in engines
        )
        assert [seen(one.outputs[0]) for one in ours] == [seen(one.outputs[0]) for one in theirs]
        assert [one.lora_request for one in ours] == [lora, lora]
        assert [len(one.outputs[0].multimodal) for one in ours] == [0, 1]
        said.append(ours[0].outputs[0].text)
    assert said[0] != said[1]
