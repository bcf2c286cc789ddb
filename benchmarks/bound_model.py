"""The embedded model with two convolutions beside it, which take a processor far longer than reading a tile does."""

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
"""A tile of 256 takes one thread as long as Prithvi tiny does, some 70 ms."""


class BoundWaterIndex(WaterIndex):
    """Answers as ``WaterIndex``."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        made = torch.Generator().manual_seed(0)
        for name, given in (("first", BANDS), ("second", CHANNELS)):
            kernel = torch.randn(CHANNELS, given, 3, 3, generator=made)
            self.register_buffer(name, kernel, persistent=False)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Convolve, then as ``WaterIndex``."""
        convolve = torch.nn.functional.conv2d
        beside = convolve(convolve(pixel_values.float() * 1e-4, self.first, padding=1), self.second, padding=1)
        return super().forward(pixel_values) + 0.0 * beside[:, :1]


def bound_folder(folder: Path) -> str:
    """The embedded model's folder, copied into ``folder``, with the class that takes long."""
    copy = Path(shutil.copytree(embedded_model("water-index"), folder / "bound"))
    config = json.loads((copy / "config.json").read_text())
    config["architectures"] = [BoundWaterIndex.__name__]
    config["mmout"]["model"] = f"{BoundWaterIndex.__module__}:{BoundWaterIndex.__name__}"
    (copy / "config.json").write_text(json.dumps(config))
    return str(copy)
