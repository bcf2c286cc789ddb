"""Convert the tensors of a request to vLLM's input format, and back to tensors in the worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import uuid4

import numpy as np

from vllm_mmout.models.inputs.input_forms import native
from vllm_mmout.models.inputs.shared_memory import Address, SharedMemory, map_memory, tensor_at
from vllm_mmout.registry.input_registry import IMAGE

if TYPE_CHECKING:
    import torch
    from vllm.inputs import MultiModalInput


FIELD: Final = "tensors"
"""Key of vLLM's input format that holds all tensors of a request, as a list."""

_ABSENT = np.empty(0, np.bool_)
"""Empty array that is sent in place of an argument of ``forward`` that a request leaves out. It cannot be mistaken for
a real input, because real inputs are never empty."""


def as_mm_input(tensors: Mapping[str, Any], keywords: Sequence[str], tokens: int = 1) -> MultiModalInput:
    """Convert the tensors of one input to vLLM's input format.

    The tensors are sent as one list, which vLLM leaves unchanged. Without the list, vLLM would stack the tensors of all
    requests in a step. This would fail or cast tensors if dtypes differ, and keep only the last request's keywords if
    keywords differ.
    """
    return raw_input({FIELD: [_values(tensors, keywords)]}, tokens)


def as_block_input(
    tensors: Mapping[str, Any],
    keywords: Sequence[str],
    tiles: int,
    *,
    memory: SharedMemory | None = None,
    engine: int = 0,
) -> MultiModalInput:
    """Convert the tensors of ``tiles`` tiles to vLLM's input format. Axis 0 of the tensors is the tiles.

    Tensors in ``memory`` are not sent if the worker of the engine with the index ``engine`` has mapped it. The worker
    then finds them by their offset. The list of tensors ends with numbers: the number of tiles, and if there is a
    memory, the engine, the memory's address, and the offset of each tensor or 0. Each number is the length of a tensor
    [0, number], because a shape can be read without waiting for a GPU.
    """
    values = _values(tensors, keywords)
    numbers = [tiles]
    if memory is not None:
        is_mapped = memory.is_mapped_by(engine)
        offsets = [(memory.offset_of(value) or 0) if is_mapped else 0 for value in values]
        values = [
            value.new_empty((0, *value.shape)) if offset else value
            for value, offset in zip(values, offsets, strict=True)
        ]
        numbers += [engine, *memory.address, *offsets]
    return raw_input({FIELD: [[*values, *(as_tensor(np.empty((0, number), np.bool_)) for number in numbers)]]})


def _values(tensors: Mapping[str, Any], keywords: Sequence[str]) -> list[torch.Tensor]:
    return [as_tensor(tensors.get(name, _ABSENT)) for name in keywords]


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
    """Return a request's tensors by argument name of ``forward``. ``values`` is the list that vLLM transports.

    Tensors that the frontend left in shared memory are returned as views of that memory, on the CPU.
    """
    tensors = {
        name: value
        for name, value in zip(keywords, values[: len(keywords)], strict=True)
        if str(value.dtype) != "torch.bool" or value.shape != _ABSENT.shape
    }
    _, *shared = [value.shape[1] for value in values[len(keywords) :]] or [0]
    if shared:
        engine, pid, fd, token, *offsets = shared
        memory = map_memory(Address(pid, fd, token), engine)
        for name, offset in zip(keywords, offsets, strict=True):
            if offset:
                tensors[name] = tensor_at(memory, offset, tensors[name].shape[1:], tensors[name].dtype)
    return tensors


def tiles_of(values: Sequence[torch.Tensor], keywords: Sequence[str]) -> int | None:
    """Return how many tiles a request's tensors hold, or None if the request is for a single input."""
    return int(values[len(keywords)].shape[1]) if len(values) > len(keywords) else None
