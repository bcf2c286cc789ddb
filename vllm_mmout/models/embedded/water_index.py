"""Define the embedded model `WaterIndex`, which finds water by the index MNDWI (Xu 2006)."""

from typing import Any

import torch
from torch import Tensor, nn

from vllm_mmout import MULTIMODAL_INPUT_REGISTRY, RasterMapper, register_output_processor
from vllm_mmout.processors import SegmentationProcessor


@register_output_processor(SegmentationProcessor)
@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(RasterMapper.from_config)
class WaterIndex(nn.Module):
    """Model that maps six bands, [n, 6, h, w], to logits of land and water, float32 [n, 2, h, w]."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.scales = config["integer_scale"], config["float_scale"]  # to reflectance; chosen by dtype
        self.index = nn.Parameter(torch.zeros(2, 6, 1, 1))  # band weights of the difference and of the sum
        self.head = nn.Parameter(torch.zeros(2, 1, 1))

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Return the logits. Bands are added one by one, because a convolution could run in TF32, which is inexact."""
        reflectance = (pixel_values.float() * self.scales[pixel_values.is_floating_point()]).relu_()
        sums: Tensor = reflectance[:, :1] * self.index[:, 0]
        for band in range(1, 6):
            sums += reflectance[:, band : band + 1] * self.index[:, band]
        return sums[:, :1] / sums[:, 1:].clamp(min=1e-6) * self.head
