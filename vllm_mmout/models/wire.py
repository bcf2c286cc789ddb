"""What travels of an input: its tensors, in the form in which vLLM neither stacks nor drops any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast
from uuid import uuid4

import numpy as np
import torch
from vllm.inputs import MultiModalInput, mm_input
from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems, PlaceholderRange

from vllm_mmout.registry.inputs import IMAGE

FIELD: Final = "tensors"
"""The one keyword under which a request's tensors travel."""

_ABSENT = torch.empty(0, dtype=torch.bool)
"""Stands for a keyword that a request leaves out; an input of size 0 is refused before."""


def as_mm_input(tensors: Mapping[str, Any], keywords: Sequence[str]) -> MultiModalInput:
    """Render one input for the engine: no hashing, no processor run, no cache.

    The tensors go as one list, which vLLM leaves alone. Tensors it stacks, and fails, for all requests of the step and
    for good, where they differ in dtype, or casts one to the dtype of another; and of requests of one step that differ
    in keywords it keeps the last ones only.

    Args:
        tensors: keyword of ``forward`` to its array or tensor, without the batch axis.
        keywords: all keywords of ``forward``, in order.

    """
    values = [as_tensor(tensors[name]) if name in tensors else _ABSENT for name in keywords]
    return _raw_input({FIELD: [values]})


def as_keyword_input(tensors: Mapping[str, Any]) -> MultiModalInput:
    """Render one input for a model that is written for vLLM: each keyword a field, batched as vLLM does it."""
    return _raw_input({name: [as_tensor(value)] for name, value in tensors.items()})


def as_tensor(value: Any) -> torch.Tensor:
    """An array or tensor as a tensor; an array that torch cannot share memory with is copied.

    Such are one that is read-only (of a picture or of bytes), turned round, or of another byte order.
    """
    if isinstance(value, np.ndarray):
        value = np.require(value, value.dtype.newbyteorder("="), ["C", "W"])
    return torch.as_tensor(value)


def _raw_input(batch: dict[str, Any]) -> MultiModalInput:
    fields = {key: MultiModalFieldConfig.batched(IMAGE) for key in batch}
    return mm_input(
        prompt_token_ids=[1],
        mm_kwargs=MultiModalKwargsItems.from_hf_inputs(cast("Any", batch), fields),
        mm_hashes={IMAGE: [uuid4().hex]},
        mm_placeholders={IMAGE: [PlaceholderRange(offset=0, length=0)]},
    )


def tensors_of(values: Sequence[torch.Tensor], keywords: Sequence[str]) -> dict[str, torch.Tensor]:
    """The tensors by keyword that one request brought, in the worker."""
    return {
        name: value
        for name, value in zip(keywords, values, strict=True)
        if value.dtype != torch.bool or value.shape != _ABSENT.shape
    }
