"""Two elements of a uint8 tensor to a byte, where all are 0 to 14 or 255, as classes and nodata of most maps are."""

from __future__ import annotations

import numpy as np
import torch

_MOST = 14
_WORTH_HALVING = 256  # elements of a request's tensor from which on two share a byte


def fit_halves(tensor: torch.Tensor) -> bool:
    """Whether two elements fit one byte, and that pays."""
    if tensor.dtype != torch.uint8 or tensor[:1].numel() < _WORTH_HALVING:
        return False
    return int((tensor + 1).max()) <= _MOST + 1  # 255 becomes 0; to compare each takes many times as long


def to_halves(rows: torch.Tensor) -> torch.Tensor:
    """Elements [requests, n], two to a byte: [requests, (n + 1) // 2]."""
    low = rows.clamp(max=_MOST + 1).contiguous()  # 255 becomes 15
    if low.shape[1] % 2:
        low = torch.nn.functional.pad(low, (0, 1))
    pairs = low.view(torch.int16)
    pairs |= pairs >> 4
    return pairs.to(torch.uint8)


def from_halves(part: torch.Tensor, count: int) -> torch.Tensor:
    """The first ``count`` elements that lie two to a byte; by numpy: torch waits for its threads where all are busy."""
    pairs = part.numpy().astype(np.uint16)
    others = pairs << 4
    pairs |= others
    pairs &= 0x0F0F
    np.add(pairs, 0x0101, out=others)
    others &= 0x1010  # 16 where an element is 15
    others *= 15
    pairs |= others  # 15 and 240 are 255
    return torch.from_numpy(pairs.view(np.uint8)[:count])
