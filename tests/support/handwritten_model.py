"""A single-pass model written by hand for vLLM: nothing of this package but, on one class, its output processor.

``python handwritten_model.py FOLDER`` serves the first class and writes what ``encode`` gives to FOLDER/answer.npz.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from vllm.inputs import mm_input
from vllm.model_executor.layers.pooler import IdentityPooler
from vllm.model_executor.models.interfaces import IsAttentionFree, SupportsMultiModal
from vllm.model_executor.models.utils import AutoWeightsLoader
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems, PlaceholderRange
from vllm.multimodal.parse import MultiModalDataParser, ProcessorBatchItems
from vllm.multimodal.processing import BaseDummyInputsBuilder, BaseMultiModalProcessor, BaseProcessingInfo

ARGUMENTS = {
    "runner": "pooling",
    "skip_tokenizer_init": True,
    "enable_mm_embeds": True,
    "enforce_eager": True,
    "mm_processor_cache_gb": 0,
    "dtype": "float32",
    "max_num_seqs": 4,
}
"""What vLLM must be told of such a model."""
INPUTS = [np.random.default_rng(seed).normal(size=(2, 6, 8)).astype(np.float32) for seed in range(6)]


class Parser(MultiModalDataParser):
    """Takes one array an input."""

    def _parse_image_data(self, data):
        return ProcessorBatchItems([np.asarray(data[0] if isinstance(data, list) else data)], "image")


class Info(BaseProcessingInfo):
    """One image a request."""

    def get_data_parser(self):
        return Parser()

    def get_supported_mm_limits(self):
        return {"image": 1}

    def get_mm_max_tokens_per_item(self, seq_len, mm_counts):
        return {"image": 0}


class Dummy(BaseDummyInputsBuilder[Info]):
    """Zeros."""

    def get_dummy_text(self, mm_counts):
        return ""

    def get_dummy_mm_data(self, seq_len, mm_counts, mm_options):
        return {"image": np.zeros((2, 6, 8), np.float32)}


class Processor(BaseMultiModalProcessor[Info]):
    """Hands the array on as "pixels"."""

    requires_tokenizer = False

    def _get_mm_fields_config(self, hf_inputs, hf_processor_mm_kwargs):
        return {"pixels": MultiModalFieldConfig.batched("image")}

    def _get_prompt_updates(self, *args, **kwargs):
        return []

    def apply(self, inputs, timing_ctx):
        (array,) = inputs.mm_data_items["image"].get_all()
        batch = {"pixels": torch.from_numpy(array)[None]}
        return mm_input(
            prompt_token_ids=[1],
            mm_kwargs=MultiModalKwargsItems.from_hf_inputs(batch, self._get_mm_fields_config(batch, {})),
            mm_hashes=inputs.get_mm_hashes(self.info.model_id, "blake3"),
            mm_placeholders={"image": [PlaceholderRange(offset=0, length=0)]},
        )


class ByHand(nn.Module, IsAttentionFree, SupportsMultiModal):
    """A weight a band, then the sum of the bands."""

    supports_multimodal_raw_input_only = True
    is_pooling_model = True
    attn_type = "attention_free"

    def __init__(self, vllm_config, prefix=""):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, 1, 1))
        self.pooler = IdentityPooler()
        self.width = vllm_config.model_config.get_inputs_embeds_size()

    @classmethod
    def get_placeholder_str(cls, modality, i):
        return None

    def embed_input_ids(self, input_ids, *args, **kwargs):
        return torch.zeros((input_ids.shape[0], self.width))

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, **kwargs):
        return (kwargs["pixels"] * self.weight).sum(dim=1, keepdim=True)

    def load_weights(self, weights):
        return AutoWeightsLoader(self).load_weights(weights)


@MULTIMODAL_REGISTRY.register_processor(Processor, info=Info, dummy_inputs=Dummy)
class HandWritten(ByHand):
    """Registered with vLLM alone."""


def prompts():
    """The inputs as vLLM takes them."""
    return [{"prompt_token_ids": [1], "multi_modal_data": {"image": data}} for data in INPUTS]


def encoded(llm):
    """The raw tensors that ``encode`` gives, by the input's number."""
    results = llm.encode(prompts(), pooling_task="plugin", use_tqdm=False)
    return {str(number): result.outputs.data.numpy() for number, result in enumerate(results)}


def main(folder):
    """Serve the first class in this process."""
    from vllm import LLM
    from vllm.model_executor.models.registry import ModelRegistry

    ModelRegistry.register_model("HandWritten", HandWritten)
    llm = LLM(folder, gpu_memory_utilization=0.3, **ARGUMENTS)
    np.savez(Path(folder, "answer.npz"), **encoded(llm))
    print("ours:", "vllm_mmout" in sys.modules)  # noqa: T201


if __name__ == "__main__":
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    main(sys.argv[1])
