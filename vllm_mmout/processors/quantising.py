"""Convert floating-point pixels to 8 bits, for pictures and videos."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from vllm_mmout.errors import OptionError

if TYPE_CHECKING:
    import torch

Range: TypeAlias = tuple[float, float]
"""Pair of input values (black, white). Black becomes 0, and white becomes 255, in the 8-bit result."""


def checked_range(value_range: Sequence[float]) -> Range:
    """Return the option ``value_range`` as two floats. Raise OptionError unless they are finite and ascending."""
    try:
        low, high = (float(end) for end in value_range)
    except (TypeError, ValueError):
        raise OptionError(f"value_range must be two numbers (black, white), got {value_range!r}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise OptionError(f"value_range must be two finite numbers, the lower first, got {value_range!r}")
    return low, high


def quantised(tensor: torch.Tensor, value_range: Range) -> torch.Tensor:
    """Map values linearly from ``value_range`` to uint8 0..255, and clamp values outside. NaN becomes 0."""
    import torch

    low, high = value_range
    scaled = (tensor.to(torch.float32) - low) * (255.0 / (high - low))
    return torch.nan_to_num(scaled.round().clamp(0, 255), nan=0.0).to(torch.uint8)
