"""GreyLevels: the pixels of a decoder, floating point, as bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_mmout.errors import DecodeError, OptionError
from vllm_mmout.processors.decoders.folder import read_table

if TYPE_CHECKING:
    import torch

_IMAGE_FILE = "preprocessor_config.json"
"""Of an image processor alone, and of a whole model as transformers before version 5 saved it."""
_MODEL_FILE = "processor_config.json"
"""Of a whole model's processor, with its image processor in it."""


@dataclass(frozen=True)
class GreyLevels:
    """What undoes the normalisation of pixels: ``pixel * std + mean`` is 0 for black and 1 for white."""

    mean: tuple[float, ...] = (0.5,)
    """One for all channels, or one a channel."""
    std: tuple[float, ...] = (0.5,)
    """One for all channels, or one a channel."""

    def bytes_of(self, pixels: torch.Tensor) -> torch.Tensor:
        """Quantise pixels to bytes: rounded half to even, clamped; NaN becomes 0.

        Args:
            pixels: floating point [n, channels, height, width].

        Returns:
            uint8 [n, height, width, channels].

        Raises:
            DecodeError: there are as many means as three channels have, and other channels.

        """
        import torch

        if any(len(values) not in (1, pixels.shape[1]) for values in (self.mean, self.std)):
            raise DecodeError(
                f"the decoder made {pixels.shape[1]} channels, mean and std have {len(self.mean)} and {len(self.std)}"
                " values; give one number, or one a channel"
            )
        mean, std = (
            torch.tensor(values, dtype=torch.float32, device=pixels.device).reshape(1, -1, 1, 1)
            for values in (self.mean, self.std)
        )
        levels = ((pixels.to(torch.float32) * std + mean) * 255.0).round().clamp(0, 255)
        return torch.nan_to_num(levels, nan=0.0).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def grey_levels(
    mean: float | Sequence[float] | None,
    std: float | Sequence[float] | None,
    value_range: Sequence[float] | None,
) -> GreyLevels | None:
    """What the options ``mean``, ``std`` and ``value_range`` say; None where they say nothing.

    Raises:
        OptionError: one is malformed, or they contradict one another.

    """
    if value_range is not None:
        if mean is not None or std is not None:
            raise OptionError("value_range and mean or std say the same twice; leave one out", param="value_range")
        low, high = _numbers("value_range", value_range, 2)
        if low >= high:
            raise OptionError(
                f"value_range must be two finite numbers, the lower first, got {value_range!r}", param="value_range"
            )
        return GreyLevels((-low / (high - low),), (1 / (high - low),))
    if mean is None and std is None:
        return None
    if mean is None or std is None:
        raise OptionError("mean and std belong together; set both, or value_range", param="std" if mean else "mean")
    return GreyLevels(_numbers("mean", mean), _checked_std("std", std))


def levels_beside(folder: Path) -> GreyLevels | None:
    """What the image processor says that lies in a decoder's folder, None without one.

    Raises:
        OptionError: its file cannot be read, or is malformed.

    """
    for path in (folder / _MODEL_FILE, folder / _IMAGE_FILE):  # in the order of transformers
        table = read_table(path) if path.is_file() else {}
        own = table.get("image_processor") if path.name == _MODEL_FILE else table
        if own is None:
            continue
        if not isinstance(own, dict):
            raise OptionError(f"image_processor of {path} must be a table, got {own!r}", param="decoder")
        mean, std = own.get("image_mean"), own.get("image_std")
        if mean is not None and std is not None:
            return GreyLevels(_numbers(f"image_mean of {path}", mean), _checked_std(f"image_std of {path}", std))
    return None


def _checked_std(name: str, value: Any) -> tuple[float, ...]:
    numbers = _numbers(name, value)
    if min(numbers) <= 0:
        raise OptionError(f"{name} must be above 0, got {value!r}")
    return numbers


def _numbers(name: str, value: Any, count: int | None = None) -> tuple[float, ...]:
    """One number or several, finite."""
    values = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    known = all(isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one) for one in values)
    if not known or not values or (count is not None and len(values) != count):
        wanted = f"{count} finite numbers" if count else "a finite number, or one a channel"
        raise OptionError(f"{name} must be {wanted}, got {value!r}")
    return tuple(float(one) for one in values)
