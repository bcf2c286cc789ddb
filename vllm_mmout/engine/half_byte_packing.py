"""Pack two uint8 elements into a byte to halve the size of class maps. Elements must be 0 to 14, or 255 (nodata)."""

from __future__ import annotations

import numpy as np
import torch

_LARGEST = 14
"""Largest uint8 element that is stored unchanged in half a byte. The half byte 15 encodes 255 (nodata)."""
_WORTH_HALVING = 256
"""Smallest number of elements per request that makes packing worthwhile. Smaller results are sent unpacked."""


def fit_halves(tensor: torch.Tensor) -> bool:
    """Return whether it is possible and worthwhile to pack two elements of ``tensor`` [requests, ...] into each byte.

    Packing needs a tensor on the CPU, dtype uint8, ``_WORTH_HALVING`` or more elements per request, and only elements 0
    to 14 or 255. On a GPU, looking at the elements would wait until the device has finished the forward.
    """
    if not tensor.is_cpu or tensor.dtype != torch.uint8 or tensor[:1].numel() < _WORTH_HALVING:
        return False
    return int((tensor + 1).max()) <= _LARGEST + 1  # 255 becomes 0; comparing each element would take much longer


def to_halves(rows: torch.Tensor) -> torch.Tensor:
    """Pack a uint8 tensor [requests, n], two elements to a byte. Return uint8 [requests, (n + 1) // 2]."""
    low = rows.clamp(max=_LARGEST + 1).contiguous()  # 255 becomes 15
    if low.shape[1] % 2:
        low = torch.nn.functional.pad(low, (0, 1))
    pairs = low.view(torch.int16)
    pairs |= pairs >> 4
    return pairs.to(torch.uint8)


def from_halves(packed: torch.Tensor, count: int) -> torch.Tensor:
    """Unpack ``count`` uint8 elements from ``packed``, a tensor of bytes that each hold two elements.

    This uses NumPy, because torch would wait for its own threads when all cores are busy.
    """
    pairs = packed.numpy().astype(np.uint16)
    others = pairs << 4
    pairs |= others
    pairs &= 0x0F0F
    np.add(pairs, 0x0101, out=others)
    others &= 0x1010  # 16 where an element is 15
    others *= 15
    pairs |= others  # 15 and 240 are 255
    return torch.from_numpy(pairs.view(np.uint8)[:count])
