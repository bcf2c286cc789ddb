"""A model that hangs in a step where its input says so."""

from __future__ import annotations

import json
import time

import torch
from torch import nn

from vllm_mmout import MULTIMODAL_INPUT_REGISTRY, register_output_processor
from vllm_mmout.processors import TensorProcessor


@register_output_processor(TensorProcessor)
@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(lambda config: lambda data, params: {"x": torch.tensor(float(data))})
class HangingNet(nn.Module):
    """Network that returns its input, and hangs if the input is negative."""

    def __init__(self, config):
        super().__init__()

    def forward(self, x):
        """Return one number for each request."""
        while bool((x < 0).any()):
            time.sleep(0.02)
        return x[:, None]


def write_folder(folder):
    """The folder of the model."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    table = {"model": "hanging_model:HangingNet"}
    config = {"architectures": ["HangingNet"], "model_type": "mmout", "dtype": "float32", "mmout": table}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({}, folder / "model.safetensors")
    return folder
