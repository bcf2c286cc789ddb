"""WaterIndexNet: a water index written as a single-pass network, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from vllm_mmout.errors import InputError, OptionError

BANDS: Final = ("blue", "green", "red", "narrow NIR", "SWIR 1", "SWIR 2")
"""What the six input channels hold, in the order of Prithvi's Sentinel-2 and HLS models."""

CLASSES: Final = ("land", "water")
"""What the two logits stand for."""

LEAST_SUM: Final = 1e-6
"""Least denominator of the index, in reflectance: what reflects nothing at all has index 0 instead of 0 / 0."""


_AXES = 4  # batch, channels, rows, columns


class PointwiseConv(nn.Module):
    """A 1x1 convolution without bias, summed in float32 in the order of its input channels.

    The sum is written out because `torch.nn.Conv2d` promises neither: cuDNN takes TF32 (10 bits of mantissa) unless
    told not to, and each library sums in an order of its own. Single float32 operations are the same everywhere.

    Args:
        channels_in: input channels.
        channels_out: output channels.

    """

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        weight = torch.zeros(channels_out, channels_in, 1, 1, dtype=torch.float32)
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """float32 [n, channels_in, h, w] -> float32 [n, channels_out, h, w]."""
        weight = self.weight.to(torch.float32)
        total = x[:, :1] * weight[:, 0]
        for channel in range(1, weight.shape[1]):
            total = total + x[:, channel : channel + 1] * weight[:, channel]
        return total


class WaterIndexNet(nn.Module):
    """Land and water by the modified normalised difference water index, (green - SWIR 1) / (green + SWIR 1).

    Xu, H. (2006): Modification of normalised difference water index (NDWI) to enhance open water features in remotely
    sensed imagery. International Journal of Remote Sensing 27(14), 3025-3033. Water has an index above 0.

    One 1x1 convolution makes numerator and denominator of the six bands, their quotient is the index, another makes the
    two logits of it. Reflectance is never below 0: what atmospheric correction left below is taken as 0, so that the
    index stays within -1 and 1. No pixel depends on another; one with NaN or infinity in a band has NaN logits.

    Args:
        config: the model's ``config.json``; two keys of it are used, the factors that make reflectance (0..1) of what
            the file holds: ``integer_scale`` for integer input (default 0.0001), ``float_scale`` for floating-point
            input (default 1.0: it is reflectance already). The dtype alone decides, never the values. The index is a
            ratio, so it comes out the same where a file of floats holds reflectance times 10000.

    Raises:
        OptionError: a scale is not a number above 0.

    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._integer_scale = _scale(config or {}, "integer_scale", 1e-4)
        self._float_scale = _scale(config or {}, "float_scale", 1.0)
        self.index = PointwiseConv(len(BANDS), 2)
        self.head = PointwiseConv(1, len(CLASSES))
        self.head_bias = nn.Parameter(torch.zeros(len(CLASSES), 1, 1, dtype=torch.float32), requires_grad=False)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Logits of land and water.

        Args:
            pixel_values: [n, 6, h, w] of any integer or floating-point dtype, bands as in `BANDS`.

        Returns:
            float32 [n, 2, h, w].

        Raises:
            InputError: the input has another shape, or is boolean or complex.

        """
        if pixel_values.ndim != _AXES or pixel_values.shape[1] != len(BANDS):
            raise InputError(
                f"water-index takes [n, {len(BANDS)}, height, width] ({', '.join(BANDS)}),"
                f" got {list(pixel_values.shape)}; choose bands with bands=[...]"
            )
        if pixel_values.dtype == torch.bool or pixel_values.is_complex():
            raise InputError(f"water-index takes integers or floating point, got {pixel_values.dtype}")
        scale = self._float_scale if pixel_values.is_floating_point() else self._integer_scale
        reflectance = (pixel_values.to(torch.float32) * scale).relu()
        difference, total = self.index(reflectance).split(1, dim=1)
        index = difference / total.clamp(min=LEAST_SUM)
        logits: Tensor = self.head(index) + self.head_bias.to(torch.float32)
        return logits


def _scale(config: Mapping[str, Any], key: str, default: float) -> float:
    """A factor of the config, checked."""
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise OptionError(f"{key} must be a number above 0, got {value!r}")
    return float(value)
