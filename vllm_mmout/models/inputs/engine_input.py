"""Convert the tensors of a request to vLLM's input format, and back to tensors in the worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import uuid4

import numpy as np

from vllm_mmout.models.inputs.input_forms import native
from vllm_mmout.registry.input_registry import IMAGE

if TYPE_CHECKING:
    import torch
    from vllm.inputs import MultiModalInput


FIELD: Final = "tensors"
"""Key of vLLM's input format that holds all tensors of a request, as a list."""

_ABSENT = np.empty(0, np.bool_)
"""Empty array that is sent for a keyword of ``forward`` that a request leaves out. Real inputs are never empty."""


def as_mm_input(
    tensors: Mapping[str, Any], keywords: Sequence[str], tokens: int = 1, *, tiles: int | None = None
) -> MultiModalInput:
    """Convert the tensors of one input, or of several tiles, to vLLM's input format.

    The tensors are sent as one list, which vLLM leaves unchanged. Without the list, vLLM would stack the tensors of all
    requests in a step. This would fail or cast tensors if dtypes differ, and keep only the last request's keywords if
    keywords differ. A block of tiles has a further tensor without elements, bool [0, tiles], because a shape can be
    read without waiting for a GPU.
    """
    values = [as_tensor(tensors.get(name, _ABSENT)) for name in keywords]
    if tiles is not None:
        values.append(as_tensor(np.empty((0, tiles), np.bool_)))
    return raw_input({FIELD: [values]}, tokens)


def as_tensor(value: Any) -> torch.Tensor:
    """Convert an array or tensor to a torch tensor. Copy arrays that are read-only, reversed or byte-swapped."""
    import torch

    if isinstance(value, np.ndarray):
        value = np.require(native(value), requirements=["C", "W"])
    return torch.as_tensor(value)


def raw_input(batch: dict[str, Any], tokens: int = 1) -> MultiModalInput:
    """Wrap a request's tensors in vLLM's input format, with a prompt of ``tokens`` placeholder tokens."""
    from vllm.inputs import mm_input
    from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems, PlaceholderRange

    fields = {key: MultiModalFieldConfig.batched(IMAGE) for key in batch}
    return mm_input(
        prompt_token_ids=[1] * tokens,
        mm_kwargs=MultiModalKwargsItems.from_hf_inputs(cast("Any", batch), fields),
        mm_hashes={IMAGE: [uuid4().hex]},
        mm_placeholders={IMAGE: [PlaceholderRange(offset=0, length=0)]},
    )


def tensors_of(values: Sequence[torch.Tensor], keywords: Sequence[str]) -> dict[str, torch.Tensor]:
    """Return a request's tensors by keyword of the model's ``forward``. ``values`` is the list that vLLM transports."""
    return {
        name: value
        for name, value in zip(keywords, values[: len(keywords)], strict=True)
        if str(value.dtype) != "torch.bool" or value.shape != _ABSENT.shape
    }


def tiles_of(values: Sequence[torch.Tensor], keywords: Sequence[str]) -> int | None:
    """Return the number of tiles that a request's tensors hold, or None if they hold a single input."""
    return int(values[-1].shape[1]) if len(values) > len(keywords) else None
