"""Define `MappedInput`, the tensors of one input, and `InputMapper`, the functions that return them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from vllm_mmout.outputs.base import Source

if TYPE_CHECKING:
    from vllm_mmout.params import OutputParams


@dataclass(frozen=True, slots=True)
class MappedInput:
    """Input converted to tensors for the model's ``forward``, with the metadata that the output needs."""

    tensors: Mapping[str, Any]
    """Arrays or tensors by keyword of ``forward``, without the batch axis."""
    source: Source = field(default_factory=Source)
    """Properties of the input, such as size and georeference, that are needed to write the result."""


InputMapper: TypeAlias = "Callable[[Any, OutputParams], MappedInput | Mapping[str, Any]]"
"""Function that converts a user's input to tensors. It raises InputError for an input that it cannot convert.

The function must be thread-safe. It may have an attribute ``inputs``, which maps each keyword in its result to the
`TensorSpec` of the tensor.
"""
