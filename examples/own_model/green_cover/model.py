"""The model GreenCover, which estimates the share of green plants in each pixel."""

from typing import Any

import torch
from torch import nn
from vllm_mmout import MULTIMODAL_INPUT_REGISTRY, RasterMapper, register_output_processor

from green_cover.processor import CoverPercent


@register_output_processor(CoverPercent)
@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(RasterMapper.from_config)
class GreenCover(nn.Module):
    """A network of four bands [n, 4, height, width], integers or reflectance, to shares [n, 1, height, width]."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.scale = config["integer_scale"]
        bands, width = len(config["bands"]), config["width"]
        self.pixel = nn.Sequential(nn.Conv2d(bands, width, 1), nn.ReLU(), nn.Conv2d(width, width, 1), nn.ReLU())
        self.around = nn.Conv2d(width, 1, 3, padding=1, padding_mode="replicate")

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Return the shares. The first layers see each pixel alone, the last layer also sees its neighbours."""
        scale = 1.0 if pixel_values.is_floating_point() else self.scale
        return self.around(self.pixel(pixel_values.float() * scale)).sigmoid()
