"""NumPy arrays of what a decoder hands over: arrays, or torch tensors of any device, without importing torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def as_numpy(value: Any) -> NDArray[Any]:
    """An array of ``value``, sharing its memory where it can.

    Args:
        value: array, sequence, or torch tensor. bfloat16, which NumPy does not have, becomes float32, exactly.

    """
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            value = value.float()
    return np.asarray(value)
