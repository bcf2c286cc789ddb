"""The command ``green-cover-model FOLDER``, which trains the model on mixed spectra and writes its folder."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from green_cover.model import GreenCover

CONFIG: dict[str, Any] = {
    "architectures": ["GreenCover"],
    "model_type": "mmout",
    "dtype": "float32",
    "bands": ["green", "red", "narrow NIR", "SWIR 1"],
    "max_size": 1024,
    "integer_scale": 0.0001,
    "width": 16,
}
"""The ``config.json``. The input mapper reads ``bands`` and ``max_size``, the model ``integer_scale`` and ``width``."""

SPECTRA = {
    "lush crop": (0.066, 0.032, 0.440, 0.190),
    "forest": (0.040, 0.023, 0.280, 0.115),
    "young leaves": (0.088, 0.050, 0.330, 0.215),
    "dry grass": (0.135, 0.185, 0.290, 0.350),
    "bare soil": (0.120, 0.160, 0.240, 0.320),
    "wet soil": (0.070, 0.088, 0.130, 0.125),
    "concrete": (0.200, 0.215, 0.250, 0.270),
    "clear water": (0.046, 0.030, 0.012, 0.006),
    "turbid water": (0.118, 0.128, 0.072, 0.016),
    "cloud": (0.630, 0.620, 0.640, 0.470),
}
"""Typical reflectances of the bands by surface. The first three surfaces are green plants."""

GREEN_KINDS = 3


def mixed_patches(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return patches of 24 x 24 pixels with surfaces that blend into each other, under varying light.

    Returns:
        Reflectance, float32 [count, 4, 24, 24], and the share of green plants, float32 [count, 1, 24, 24].

    """
    spectra = torch.tensor(list(SPECTRA.values()))
    coarse = torch.randn(count, len(spectra), 8, 8, generator=generator) * 5
    shares = torch.nn.functional.interpolate(coarse, scale_factor=3, mode="bilinear").softmax(1)
    light = 0.7 + 0.5 * torch.rand(count, 1, 1, 1, generator=generator)
    pixels = torch.einsum("nkhw,kb->nbhw", shares, spectra) * light
    noise = 0.003 * torch.randn(pixels.shape, generator=generator)
    return pixels + noise, shares[:, :GREEN_KINDS].sum(1, keepdim=True)


def trained_model(steps: int = 300) -> GreenCover:
    """Return a model trained on mixed patches. On one machine, it has the same weights each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GreenCover(CONFIG)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several threads are slower for steps this small
    try:
        _train(model, steps)
    finally:
        torch.set_num_threads(threads)
    return model


def _train(model: GreenCover, steps: int) -> None:
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        pixels, cover = mixed_patches(16, generator)
        loss = torch.nn.functional.mse_loss(model(pixels), cover)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def write_model(folder: Path, **entries: Any) -> Path:
    """Write ``config.json`` and ``model.safetensors``, and return the folder.

    Args:
        folder: The folder to create.
        entries: Additional entries of ``config.json``, such as ``mmout={"step": 5}``.

    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **entries}, indent=2) + "\n")
    save_file(trained_model().state_dict(), folder / "model.safetensors")
    return folder


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command: train the model, and write its folder."""
    parser = argparse.ArgumentParser(prog="green-cover-model", description="Write the folder of the GreenCover model.")
    parser.add_argument("folder", type=Path)
    print("wrote", write_model(parser.parse_args(arguments).folder))
