"""Decode the latents of running requests to preview pictures, in the same way as a pipeline decodes its result."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def preview_of(pipeline: Any, latents: Tensor | None) -> Tensor | None:
    """Decode latents to a picture or video with values from 0 to 1. Return None if the latents cannot be decoded.

    Args:
        pipeline: a pipeline of diffusers with a ``vae`` or ``vqvae``.
        latents: [1 or more, channels, (frames,) height, width], or Flux's packed latents [1 or more, tokens, channels].
            Only the first item is decoded.

    Returns:
        A picture [1, bands, height, width], or a video [1, frames, bands, height, width].

    """
    vae = getattr(pipeline, "vae", None) or getattr(pipeline, "vqvae", None)
    if latents is None or vae is None:
        return None
    latents = latents[:1]
    if latents.ndim == 3:
        latents = _unpacked(pipeline, latents)
    config = vae.config
    if latents.shape[1] != (config.get("latent_channels") or config.get("z_dim")):
        return None
    axes = (1, -1, *(1,) * (latents.ndim - 2))
    if config.get("latents_mean") is not None and config.get("latents_std") is not None:
        mean, std = (latents.new_tensor(config[name]).view(axes) for name in ("latents_mean", "latents_std"))
        latents = latents * std + mean
    elif hasattr(pipeline, "vae"):
        latents = latents / config.get("scaling_factor", 1.0) + (config.get("shift_factor") or 0.0)
    decoded: Tensor = vae.decode(latents.to(vae.dtype), return_dict=False)[0]
    picture = (decoded / 2 + 0.5).clamp(0, 1)
    return picture.transpose(1, 2) if picture.ndim == 5 else picture


def _unpacked(pipeline: Any, latents: Tensor) -> Tensor:
    """Reshape Flux's packed latents [1, tokens, channels] of a square picture to [1, channels, height, width]."""
    side = math.isqrt(latents.shape[1])
    unpack = getattr(pipeline, "_unpack_latents", None)
    if unpack is None or side * side != latents.shape[1]:
        return latents.new_empty(1, 0, 1, 1)
    scale = int(pipeline.vae_scale_factor)
    unpacked = unpack(latents, side * 2 * scale, side * 2 * scale, scale)
    return unpacked if isinstance(unpacked, torch.Tensor) else latents.new_empty(1, 0, 1, 1)
