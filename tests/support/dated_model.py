"""A model of two bands on three dates, which tells all six from each other."""

from __future__ import annotations

import torch
from torch import nn

from vllm_mmout import MULTIMODAL_INPUT_REGISTRY
from vllm_mmout.models.inputs.mapper import RasterMapper

CONFIG = {
    "bands": ["B4", "B8"],
    "num_frames": 3,
    "max_size": 24,
    "mmout": {"output_processor": "regression"},
}
"""Beside the model's name, what its ``config.json`` says."""


@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(RasterMapper.from_config)
class DatedNet(nn.Module):
    """A weighted sum of each pixel's bands and dates, and what changed from the first date to the last."""

    def __init__(self, config):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 3, 1, 1))

    def forward(self, pixel_values):
        pixels = pixel_values.float()
        change = pixels[:, 0, 2] - pixels[:, 0, 0]
        return torch.stack([(pixels * self.weight).sum(dim=(1, 2)), change], dim=1)
