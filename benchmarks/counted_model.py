"""Variants of the embedded model: one records the tiles of each forward, the other does more work."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import torch
from torch import Tensor

from vllm_mmout import embedded_model
from vllm_mmout.models.embedded.water_index import WaterIndex

VARIABLE = "BENCHMARK_FORWARDS"
"""Environment variable that names the file of forwards. Each line has a time and a number of tiles."""


class CountedWaterIndex(WaterIndex):
    """A ``WaterIndex`` that appends the time and the tiles of each forward to a file."""

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Record the forward, and return the output of ``WaterIndex``."""
        with Path(os.environ[VARIABLE]).open("a") as file:
            file.write(f"{time.monotonic()} {pixel_values.shape[0]}\n")
        return super().forward(pixel_values)


class HeavyWaterIndex(WaterIndex):
    """A ``WaterIndex`` that also does the work of a small network."""

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Run three convolutions whose result is not used, and return the output of ``WaterIndex``."""
        features = pixel_values.float()
        for _ in range(3):
            weight = torch.full((32, features.shape[1], 3, 3), 1e-3, device=features.device)
            features = torch.nn.functional.conv2d(features, weight, padding=1)
        return super().forward(pixel_values)


def model_folder(folder: Path, model: type[WaterIndex]) -> Path:
    """Copy the embedded model's folder into ``folder``, with ``model`` as its class, and return the path."""
    copy = Path(shutil.copytree(embedded_model("water-index"), folder / model.__name__))
    config = json.loads((copy / "config.json").read_text())
    config["architectures"] = [model.__name__]
    config["mmout"]["model"] = f"{model.__module__}:{model.__name__}"
    (copy / "config.json").write_text(json.dumps(config))
    return copy


def forwards_between(began: float, ended: float) -> list[int]:
    """Return the number of tiles in each forward that ran between two times of ``time.monotonic``, in order."""
    lines = (line.split() for line in Path(os.environ[VARIABLE]).read_text().splitlines())
    return [int(size) for moment, size in lines if began <= float(moment) <= ended]
