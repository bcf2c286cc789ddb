"""Convert the output of a diffusers pipeline to a result tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from vllm_mmout.errors import ModelError


def result_of(output: Any, *, coloured: bool) -> Tensor:
    """Convert the output of one request's diffusers pipeline to a tensor.

    Args:
        output: one result on its first axis: a tensor from 0 to 1 [1, (frames,) bands, height, width], an array [1,
            (frames,) height, width, bands], or pictures of Pillow.
        coloured: whether the result is a picture or a video. If not, its values are numbers of any range.

    Returns:
        Pictures as uint8 [(frames,) 3, height, width], scaled from 0 to 1 as diffusers does; other results as float32.

    Raises:
        ModelError: the output has another form.

    """
    tensor = _tensor(output)
    if tensor is None:
        raise ModelError(
            f"the pipeline gave {type(output).__name__}, not one result; use a pipeline that gives pictures, frames or"
            " rasters"
        )
    tensor = tensor.float() if tensor.is_floating_point() else tensor
    if not coloured:
        return tensor.float()
    return tensor if tensor.dtype == torch.uint8 else (tensor * 255).round().clamp(0, 255).to(torch.uint8)


def _tensor(output: Any) -> Tensor | None:
    """Convert a pipeline's output to a tensor without the batch axis. Return None if the output has several results.

    Also return None if the result is not a picture, video or raster.
    """
    if not isinstance(output, Tensor | np.ndarray | list | tuple) or len(output) != 1:
        return None
    result = output[0]
    if isinstance(result, list | tuple):
        frames = [_planes(frame) for frame in result]
        tensors = [frame for frame in frames if frame is not None]
        return torch.stack(tensors) if tensors and len(tensors) == len(frames) else None
    return _planes(result)


def _planes(result: Any) -> Tensor | None:
    """Convert a picture, raster or video to a tensor [..., bands, height, width]. Return None for any other type."""
    if hasattr(result, "convert"):
        result = np.array(result.convert("RGB"))
    tensor = result if isinstance(result, Tensor) else None
    if isinstance(result, np.ndarray) and result.ndim > 2:
        tensor = torch.from_numpy(result).movedim(-1, -3)
    return tensor if tensor is not None and tensor.ndim > 2 else None
