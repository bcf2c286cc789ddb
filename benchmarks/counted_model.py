"""Variants of the embedded model: one records the size of each batch, the other does more work."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from vllm_mmout import embedded_model
from vllm_mmout.models.embedded.water_index import WaterIndex

VARIABLE = "BENCHMARK_BATCHES"
"""Environment variable that names the file of batches. A line holds seconds of ``time.monotonic`` and a batch size."""


class CountedWaterIndex(WaterIndex):
    """A ``WaterIndex`` that appends the time and size of each batch to a file."""

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Record the batch, and return the output of ``WaterIndex``."""
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


def batches_between(began: float, ended: float) -> list[int]:
    """Return the sizes of the batches that ran between two times of ``time.monotonic``, in order."""
    lines = (line.split() for line in Path(os.environ[VARIABLE]).read_text().splitlines())
    return [int(size) for moment, size in lines if began <= float(moment) <= ended]


def while_many_remain(batches: Iterable[int], most: int) -> list[int]:
    """Return the batches of a scene that started while at least ``most`` of its tiles had not been run."""
    batches = list(batches)
    remaining, full_batches = sum(batches), []
    for batch in batches:
        if remaining >= most:
            full_batches.append(batch)
        remaining -= batch
    return full_batches
