"""Resize a model's per-pixel output tensors to the height and width of the input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_mmout.errors import ReduceError
from vllm_mmout.wings.transformers.inputs import SIZE

if TYPE_CHECKING:
    import torch

    from vllm_mmout.processors.base import Raw


def of_one_size(output: Raw) -> tuple[dict[str, torch.Tensor], tuple[int, int]]:
    """Return a batch's tensors and the (height, width) that all inputs share. Raise ReduceError if the sizes differ."""
    if not isinstance(output, dict) or SIZE not in output:
        raise ReduceError(f"the model's output lacks {SIZE}; name the output processor of a head of transformers only")
    tensors = {name: tensor for name, tensor in output.items() if name != SIZE}
    (height, width), *others = output[SIZE].tolist()
    if any(other != [height, width] for other in others):
        raise ReduceError("inputs of several sizes cannot be reduced together")
    return tensors, (height, width)


def scaled(planes: torch.Tensor, height: int, width: int, mode: str = "bilinear") -> torch.Tensor:
    """Scale a tensor [n, planes, height, width] to another height and width."""
    import torch

    return torch.nn.functional.interpolate(planes, (height, width), mode=mode, align_corners=False)
