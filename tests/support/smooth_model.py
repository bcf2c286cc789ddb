"""The embedded model with a strong smoothing layer: what it says of a pixel depends on all within `RADIUS` of it."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch.nn.functional import avg_pool2d

from vllm_mmout import MULTIMODAL_INPUT_REGISTRY, RasterMapper, embedded_model, register_output_processor
from vllm_mmout.models.embedded.water_index import WaterIndex
from vllm_mmout.processors import SegmentationProcessor

RADIUS = 8
"""Pixels on either side of the middle of the smoothing window."""

CONFIG = {
    key: value
    for key, value in json.loads(Path(embedded_model("water-index"), "config.json").read_text()).items()
    if key not in ("mmout", "architectures")
}


@register_output_processor(SegmentationProcessor)
@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(RasterMapper.from_config)
class SmoothWaterIndex(WaterIndex):
    """Means of logits over 17 x 17 pixels, in double precision; beyond the border there are zeros."""

    def forward(self, pixel_values):
        logits = super().forward(pixel_values).double()
        side = 2 * RADIUS + 1
        return avg_pool2d(logits, side, stride=1, padding=RADIUS, count_include_pad=True).to(torch.float32)
