"""A model that takes tiles of one size alone, and says what it saw in all of a tile."""

from __future__ import annotations

import torch
from torch import nn

from vllm_mmout import MULTIMODAL_INPUT_REGISTRY
from vllm_mmout.models.inputs.mapper import RasterMapper

SIDE = 16
"""Pixels of a tile."""

CONFIG = {
    "bands": ["red", "green", "blue"],
    "max_size": SIDE,
    "min_size": SIDE,
    "tile_edge": "pad",
    "mmout": {"output_processor": {"values": "regression", "classes": "segmentation", "label": "classification"}},
}
"""Beside the model's name, what its ``config.json`` says."""


@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(RasterMapper.from_config)
class SummingNet(nn.Module):
    """Gives three bands as they are, and as a fourth their sum over the whole tile, which the padding is part of.

    Sums of bytes are whole numbers that float32 holds; a power of two makes them 0 to 192.
    """

    def __init__(self, config):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0**-10))

    def forward(self, pixel_values):
        pixels = pixel_values.float()
        sums = pixels.sum(dim=(1, 2, 3), keepdim=True) * self.scale
        return torch.cat([pixels, sums.expand(-1, 1, *pixels.shape[2:])], dim=1)
