"""The tensors of a request or of a block of tiles as vLLM's input, and back in the worker."""

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
"""The only keyword under which a request's tensors are sent."""

_ABSENT = np.empty(0, np.bool_)
"""Placeholder for a keyword that a request leaves out; real inputs of size 0 have been refused."""


def as_mm_input(
    tensors: Mapping[str, Any], keywords: Sequence[str], tokens: int = 1, *, tiles: int | None = None
) -> MultiModalInput:
    """Convert one input, or a block of ``tiles`` tiles, for the engine without hashing, processor or cache.

    The tensors are sent as one list, which vLLM leaves unchanged. vLLM stacks plain tensors of a step: it fails for all
    of its requests if they differ in dtype, or casts one tensor to the dtype of another, and if requests differ in
    keywords, it keeps only those of the last. A block has a further tensor without elements, bool [0, tiles]: a shape
    is read without waiting for a GPU.
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
    """Return vLLM's input with a request's tensors by field, and as many prompt tokens as the model takes steps."""
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
