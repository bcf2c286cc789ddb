"""A model of 300 classes, more than a uint8 raster or a palette holds."""

from __future__ import annotations

import torch
from models_for_tests import THREE_BANDS
from torch import nn

from vllm_mmout import MULTIMODAL_INPUT_REGISTRY

COUNT = 300


@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(lambda config: THREE_BANDS)
class ManyClasses(nn.Module):
    """Takes the first band of a pixel as the number of its class."""

    def __init__(self, config):
        super().__init__()
        self.zero = nn.Parameter(torch.zeros(()))

    def forward(self, pixel_values):
        numbers = torch.arange(COUNT)[None, :, None, None]
        return self.zero - (pixel_values[:, :1].float() - numbers).abs()
