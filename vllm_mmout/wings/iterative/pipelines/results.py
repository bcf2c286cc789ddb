"""What a pipeline gives, as a tensor of a request."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from vllm_mmout.errors import ModelError


def result_of(given: Any, *, coloured: bool) -> Tensor:
    """What one request's pipeline gave.

    Args:
        given: with one result on its first axis: tensors of 0 to 1 [1, (frames,) bands, height, width]; arrays [1,
            (frames,) height, width, bands]; or pictures of Pillow.
        coloured: whether it is pictures, and no numbers.

    Returns:
        Pictures uint8 [(frames,) 3, height, width], as diffusers makes them of 0 to 1; else float32.

    Raises:
        ModelError: it is something else.

    """
    found = _tensor(given)
    if found is None:
        raise ModelError(
            f"the pipeline gave {type(given).__name__}, not one result; those that give pictures, frames or rasters are"
            " served"
        )
    found = found.float() if found.is_floating_point() else found
    if not coloured:
        return found.float()
    return found if found.dtype == torch.uint8 else (found * 255).round().clamp(0, 255).to(torch.uint8)


def _tensor(given: Any) -> Tensor | None:
    """The one result, without its axis."""
    if not isinstance(given, Tensor | np.ndarray | list | tuple) or len(given) != 1:
        return None
    one = given[0]
    if isinstance(one, list | tuple):
        frames = [_planes(frame) for frame in one]
        whole = [frame for frame in frames if frame is not None]
        return torch.stack(whole) if whole and len(whole) == len(frames) else None
    return _planes(one)


def _planes(one: Any) -> Tensor | None:
    """A picture, a raster, or frames of them, with the bands before height and width."""
    if hasattr(one, "convert"):
        one = np.array(one.convert("RGB"))
    found = one if isinstance(one, Tensor) else None
    if isinstance(one, np.ndarray) and one.ndim > 2:
        found = torch.from_numpy(one).movedim(-1, -3)
    return found if found is not None and found.ndim > 2 else None
