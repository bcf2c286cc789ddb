"""Quantisation of floating-point samples to bytes, for pictures and videos."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from vllm_mmout.errors import OptionError

if TYPE_CHECKING:
    import torch

Range: TypeAlias = tuple[float, float]
"""The lowest and the highest value, which become black and white."""


def checked_range(value_range: Sequence[float]) -> Range:
    """Return the option ``value_range`` as two floats; raise OptionError unless the lower one comes first."""
    try:
        low, high = (float(end) for end in value_range)
    except (TypeError, ValueError):
        raise OptionError(f"value_range must be two numbers (black, white), got {value_range!r}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise OptionError(f"value_range must be two finite numbers, the lower first, got {value_range!r}")
    return low, high


def quantised(tensor: torch.Tensor, value_range: Range) -> torch.Tensor:
    """Map samples linearly from the range to 0..255, round half to even, and clamp to uint8; NaN becomes 0."""
    import torch

    low, high = value_range
    scaled = (tensor.to(torch.float32) - low) * (255.0 / (high - low))
    return torch.nan_to_num(scaled.round().clamp(0, 255), nan=0.0).to(torch.uint8)
