"""Describe with formulas how an image processor of transformers scales pixel values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_COLOURS = 3


def picture_scaling(images: Any) -> tuple[str, ...]:
    """Return three formulas that show how an image processor scales red, green and blue pixel values.

    An example is "(value - 123.7) / 58.4". ``value`` is a pixel value from 0 to 255.
    """
    factor = getattr(images, "rescale_factor", None) if getattr(images, "do_rescale", False) else None
    scale = "value" if factor is None else f"value * {factor:.6g}"
    means, stds = getattr(images, "image_mean", None), getattr(images, "image_std", None)
    if not getattr(images, "do_normalize", False) or means is None or stds is None:
        return (scale,) * _COLOURS
    return tuple(f"({scale} - {mean:g}) / {std:g}" for mean, std in zip(_for_rgb(means), _for_rgb(stds), strict=True))


def _for_rgb(numbers: float | Sequence[float]) -> Sequence[float]:
    """Return three numbers, for red, green and blue. A single number is repeated."""
    listed = [numbers] if isinstance(numbers, int | float) else list(numbers)
    return listed * _COLOURS if len(listed) == 1 else listed
