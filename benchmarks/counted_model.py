"""The embedded model, which notes the size of every batch that it is run on, or has more to do."""

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
"""Names the file that batches are noted in, a line each: seconds of the monotonic clock, requests."""


class CountedWaterIndex(WaterIndex):
    """Answers as ``WaterIndex``."""

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Note the batch, then as ``WaterIndex``."""
        with Path(os.environ[VARIABLE]).open("a") as file:
            file.write(f"{time.monotonic()} {pixel_values.shape[0]}\n")
        return super().forward(pixel_values)


class HeavyWaterIndex(WaterIndex):
    """Answers as ``WaterIndex``, and does as much as a small network beside."""

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Three convolutions that nobody needs, then as ``WaterIndex``."""
        found = pixel_values.float()
        for _ in range(3):
            weight = torch.full((32, found.shape[1], 3, 3), 1e-3, device=found.device)
            found = torch.nn.functional.conv2d(found, weight, padding=1)
        return super().forward(pixel_values)


def model_folder(folder: Path, model: type[WaterIndex]) -> Path:
    """The embedded model's folder, copied into ``folder``, with one of these classes."""
    copy = Path(shutil.copytree(embedded_model("water-index"), folder / model.__name__))
    config = json.loads((copy / "config.json").read_text())
    config["architectures"] = [model.__name__]
    config["mmout"]["model"] = f"{model.__module__}:{model.__name__}"
    (copy / "config.json").write_text(json.dumps(config))
    return copy


def batches_between(began: float, ended: float) -> list[int]:
    """Sizes of the batches that ran between two times of ``time.monotonic``, in order."""
    lines = (line.split() for line in Path(os.environ[VARIABLE]).read_text().splitlines())
    return [int(size) for moment, size in lines if began <= float(moment) <= ended]


def while_many_remain(batches: Iterable[int], most: int) -> list[int]:
    """The batches of one scene at whose start at least ``most`` of its tiles had not been run."""
    batches = list(batches)
    remaining, found = sum(batches), []
    for batch in batches:
        if remaining >= most:
            found.append(batch)
        remaining -= batch
    return found
