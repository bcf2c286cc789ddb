"""`MappedInput`: the tensors of one input for a model's ``forward``. `InputMapper`: functions that return them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from vllm_mmout.outputs.base import Source

if TYPE_CHECKING:
    from vllm_mmout.params import OutputParams


@dataclass(frozen=True, slots=True)
class MappedInput:
    """An input as tensors for the model's ``forward``, with facts for its outputs."""

    tensors: Mapping[str, Any]
    """Maps keywords of ``forward`` to arrays or tensors, without the batch axis."""
    source: Source = field(default_factory=Source)
    """Facts about the input that outputs need, such as its size and its georeference."""


InputMapper: TypeAlias = "Callable[[Any, OutputParams], MappedInput | Mapping[str, Any]]"
"""Function that maps one user's input; raises InputError if the model cannot take it. Called from several threads.

It may have an attribute ``inputs``, which maps each keyword that it returns to its `TensorSpec`.
"""
