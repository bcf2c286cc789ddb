"""The embedded model with two more convolutions, which take the processor far longer than reading a tile does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.scene_files import BANDS
from vllm_mmout import embedded_model
from vllm_mmout.models.embedded.water_index import WaterIndex

CHANNELS = 96
"""Channels of the convolutions. With 96, one thread takes some 70 ms for a tile of 256, as long as Prithvi tiny."""


class BoundWaterIndex(WaterIndex):
    """A ``WaterIndex`` with two extra convolutions that do not change its output."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        generator = torch.Generator().manual_seed(0)
        for name, channels_in in (("first", BANDS), ("second", CHANNELS)):
            kernel = torch.randn(CHANNELS, channels_in, 3, 3, generator=generator)
            self.register_buffer(name, kernel, persistent=False)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Run the two convolutions, and return the output of ``WaterIndex``."""
        convolve = torch.nn.functional.conv2d
        extra = convolve(convolve(pixel_values.float() * 1e-4, self.first, padding=1), self.second, padding=1)
        return super().forward(pixel_values) + 0.0 * extra[:, :1]


def bound_folder(folder: Path) -> str:
    """Copy the embedded model's folder into ``folder``, with ``BoundWaterIndex`` as its class, and return its path."""
    copy = Path(shutil.copytree(embedded_model("water-index"), folder / "bound"))
    config = json.loads((copy / "config.json").read_text())
    config["architectures"] = [BoundWaterIndex.__name__]
    config["mmout"]["model"] = f"{BoundWaterIndex.__module__}:{BoundWaterIndex.__name__}"
    (copy / "config.json").write_text(json.dumps(config))
    return str(copy)
