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
"""Empty array that marks an argument of ``forward`` that a request leaves out. Real inputs are never empty."""
_IN_ORDER, _BANDS_LAST = 1, 2
"""Memory layouts of a tensor: contiguous, or contiguous after its axis 1, the bands, is moved to the end."""
_LARGEST_PRODUCT: Final = 2**60
"""Maximum product of the axis lengths of an empty tensor. A larger product would make the strides overflow int64."""


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

    Tensors in ``memory`` are not sent if the worker of the engine with the index ``engine`` has mapped it. The list of
    tensors has an empty tensor [0, offset, layout, *shape] in their place. The list ends with an empty tensor
    [0, tiles, token of the memory or 0], and if there is a memory, with [0, engine, process id, file descriptor].
    Numbers are sent as lengths of empty tensors, because a shape can be read without waiting for a GPU. Each tensor
    costs time to send, so there are few.
    """
    values = _values(tensors, keywords)
    if memory is None:
        return raw_input({FIELD: [[*values, _empty(tiles, 0)]]})
    if memory.is_mapped_by(engine):
        values = [_placeholder(value, memory.offset_of(value)) for value in values]
    pid, fd, token = memory.address
    return raw_input({FIELD: [[*values, _empty(tiles, token), _empty(engine, pid, fd)]]})


def _empty(*numbers: int) -> torch.Tensor:
    """Return an empty tensor that carries ``numbers`` to the worker in its shape [0, *numbers]."""
    return as_tensor(np.empty((0, *numbers), np.bool_))


def _placeholder(value: torch.Tensor, offset: int | None) -> torch.Tensor:
    """Return an empty tensor to send instead of ``value``, which is in shared memory.

    The worker reads the offset, layout and shape of ``value`` from the shape of the empty tensor. Return ``value``
    itself if it is not in shared memory, or if these numbers are too large for a shape.
    """
    if offset is None or offset * value.numel() > _LARGEST_PRODUCT:
        return value
    if value.is_contiguous():
        return value.new_empty((0, offset, _IN_ORDER, *value.shape))
    return value.new_empty((0, offset, _BANDS_LAST, *value.movedim(1, -1).shape))


def _values(tensors: Mapping[str, Any], keywords: Sequence[str]) -> list[torch.Tensor]:
    return [as_tensor(tensors.get(name, _ABSENT)) for name in keywords]


def as_tensor(value: Any) -> torch.Tensor:
    """Convert an array or tensor to a torch tensor. Copy arrays that are read-only, reversed or byte-swapped."""
    import torch

    if isinstance(value, np.ndarray):
        value = np.require(native(value), requirements=["C", "W"])
    return torch.as_tensor(value)


def as_tensor_of_tiles(value: Any) -> torch.Tensor:
    """Convert an array or tensor [tiles, bands, ...] to a torch tensor. Keep a memory layout with the bands last."""
    if isinstance(value, np.ndarray) and value.ndim > 1 and np.moveaxis(value, 1, -1).flags.c_contiguous:
        return as_tensor(np.moveaxis(value, 1, -1)).movedim(-1, 1)
    return as_tensor(value)


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
    ends = values[len(keywords) :]
    if len(ends) > 1:
        (_, token), (engine, pid, fd) = (end.shape[1:] for end in ends)
        memory = map_memory(Address(pid, fd, token), engine)
        for name, value in tensors.items():
            if not len(value):
                offset, layout, *shape = value.shape[1:]
                tensor = tensor_at(memory, offset, shape, value.dtype)
                tensors[name] = tensor if layout == _IN_ORDER else tensor.movedim(-1, 1)
    return tensors


def tiles_of(values: Sequence[torch.Tensor], keywords: Sequence[str]) -> int | None:
    """Return the number of tiles in a request that holds a block of tiles. Return None for any other request."""
    return int(values[len(keywords)].shape[1]) if len(values) > len(keywords) else None
