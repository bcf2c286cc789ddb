"""Conversion of the tensors of an input, or of a block of tiles, to vLLM's input, and back in the worker."""

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
"""Keyword of vLLM's input that holds all tensors of a request."""

_ABSENT = np.empty(0, np.bool_)
"""Placeholder for a keyword that a request leaves out. Real inputs are never empty."""


def as_mm_input(
    tensors: Mapping[str, Any], keywords: Sequence[str], tokens: int = 1, *, tiles: int | None = None
) -> MultiModalInput:
    """Convert one input, or a block of ``tiles`` tiles, to vLLM's input. No hash, processor or cache is used.

    The tensors are sent as one list, which vLLM leaves unchanged. It would stack plain tensors of all requests in a
    step. If their dtypes differ, this fails or casts some of them; if their keywords differ, only the last request's
    keywords remain. A block has a further tensor without elements, bool [0, tiles], because a shape can be read without
    waiting for a GPU.
    """
    values = [as_tensor(tensors.get(name, _ABSENT)) for name in keywords]
    if tiles is not None:
        values.append(as_tensor(np.empty((0, tiles), np.bool_)))
    return raw_input({FIELD: [values]}, tokens)


def as_tensor(value: Any) -> torch.Tensor:
    """Convert an array or tensor to a tensor; copy an array that is read-only, reversed or in another byte order."""
    import torch

    if isinstance(value, np.ndarray):
        value = np.require(native(value), requirements=["C", "W"])
    return torch.as_tensor(value)


def raw_input(batch: dict[str, Any], tokens: int = 1) -> MultiModalInput:
    """Return vLLM's input with a request's tensors by field. The prompt has a token for each step of the model."""
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
    """Return the tensors of one request by keyword, in the worker."""
    return {
        name: value
        for name, value in zip(keywords, values[: len(keywords)], strict=True)
        if str(value.dtype) != "torch.bool" or value.shape != _ABSENT.shape
    }


def tiles_of(values: Sequence[torch.Tensor], keywords: Sequence[str]) -> int | None:
    """Return the number of tiles in the block of a request, or None for a request of one input, in the worker."""
    return int(values[-1].shape[1]) if len(values) > len(keywords) else None
