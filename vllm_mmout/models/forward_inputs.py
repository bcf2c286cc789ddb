"""What a model's ``forward`` takes: its keywords, shape and dtype of each tensor, and how they travel there."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError, RegistrationError
from vllm_mmout.registry.inputs import IMAGE

if TYPE_CHECKING:
    import torch
    from vllm.inputs import MultiModalInput


class NamesItsKeywords(Protocol):
    """A model class whose ``forward(**tensors)`` takes what a folder's ``config.json`` names."""

    @classmethod
    def keywords_of(cls, config: Mapping[str, Any]) -> tuple[str, ...]:
        """The keywords of a folder's model; all are optional."""


@dataclass(frozen=True, slots=True)
class Keywords:
    """The keywords of one class's ``forward``."""

    model: str
    """Name of the class, for messages."""
    names: tuple[str, ...]
    """All of them, in the order of the signature."""
    required: frozenset[str]
    """Those without a default."""

    @classmethod
    def of(cls, model: type, config: Mapping[str, Any] | None = None) -> Keywords:
        """Read the signature of ``model.forward``, or ask a class that names its keywords (`NamesItsKeywords`)."""
        named_by = getattr(model, "keywords_of", None)
        if named_by is not None:
            return cls(model.__name__, named_by(config or {}), frozenset())
        forward: Any = getattr(model, "forward")  # noqa: B009 - a class need not have it as far as its type says
        parameters = list(inspect.signature(forward).parameters.values())[1:]
        if any(parameter.kind is parameter.POSITIONAL_ONLY for parameter in parameters):
            raise RegistrationError(f"{model.__name__}.forward takes tensors by position only; drop the '/'")
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        if not named:
            raise RegistrationError(
                f"{model.__name__}.forward must take its tensors by keyword, as forward(self, pixel_values)"
            )
        required = frozenset(parameter.name for parameter in named if parameter.default is parameter.empty)
        return cls(model.__name__, tuple(parameter.name for parameter in named), required)

    def check_declared(self, declared: Iterable[str]) -> None:
        """Check the names that an input mapper says it gives."""
        unknown = [name for name in declared if name not in self.names]
        if unknown:
            raise RegistrationError(
                f"the input mapper of {self.model} gives {', '.join(map(repr, unknown))}, its forward takes"
                f" {', '.join(self.names)}; use the same names"
            )

    def check(self, given: Iterable[str]) -> None:
        """Check the names of one input's tensors."""
        names = list(given)
        unknown = [name for name in names if name not in self.names]
        missing = [name for name in self.names if name in self.required and name not in names]
        if unknown or missing or not names:
            faults = [f"it does not know {', '.join(map(repr, unknown))}"] if unknown else []
            faults += [f"it needs {', '.join(map(repr, missing))}"] if missing else []
            takes = ", ".join(name if name in self.required else f"{name} (optional)" for name in self.names)
            raise InputError(
                f"{self.model}.forward takes {takes}; got {', '.join(map(str, names)) or 'nothing'}:"
                f" {' and '.join(faults) or 'give at least one'}"
            )


Axis: TypeAlias = int | tuple[int, int]
"""The one size of an axis, or the least and the most."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What one keyword of ``forward`` takes, without the batch axis.

    Raises:
        RegistrationError: a size or dtype is malformed.

    """

    shape: tuple[Axis, ...]
    """Each axis: its size, or (least, most)."""
    dtypes: tuple[str, ...] = ("float32",)
    """Names of numpy dtypes, the usual one first."""

    def __post_init__(self) -> None:
        for axis in self.shape:
            least, most = _bounds(axis)
            if not 1 <= least <= most:
                raise RegistrationError(f"an axis must be a size of 1 or more, or (least, most), got {axis!r}")
        if not self.dtypes:
            raise RegistrationError("a tensor needs a dtype; name at least one")
        for name in self.dtypes:
            try:
                np.dtype(name)
            except TypeError as error:
                raise RegistrationError(f"{name!r} is no dtype of numpy; name one, such as 'float32'") from error

    def check(self, keyword: str, tensor: Any) -> None:
        """Raise InputError where an array or tensor has another shape or dtype."""
        fits = len(tensor.shape) == len(self.shape) and all(
            _bounds(axis)[0] <= size <= _bounds(axis)[1] for axis, size in zip(self.shape, tensor.shape, strict=True)
        )
        dtype = str(tensor.dtype).removeprefix("torch.")
        if not fits or dtype not in self.dtypes:
            raise InputError(
                f"{keyword} must be {self}, got {dtype} {list(tensor.shape)}; a tensor comes without the batch axis"
            )

    def zeros(self) -> NDArray[Any]:
        """The largest tensor, of the usual dtype, all zero."""
        return np.zeros([_bounds(axis)[1] for axis in self.shape], self.dtypes[0])

    def __str__(self) -> str:
        axes = ", ".join(str(axis) if isinstance(axis, int) else f"{axis[0]}..{axis[1]}" for axis in self.shape)
        return f"{' or '.join(self.dtypes)} [{axes}]"


InputSpecs: TypeAlias = Mapping[str, TensorSpec]
"""Keyword of ``forward`` to what it takes."""


def _bounds(axis: Axis) -> tuple[int, int]:
    return (axis, axis) if isinstance(axis, int) else axis


FIELD: Final = "tensors"
"""The one keyword under which a request's tensors travel."""

_ABSENT = np.empty(0, np.bool_)
"""Stands for a keyword that a request leaves out; an input of size 0 is refused before."""


def as_mm_input(tensors: Mapping[str, Any], keywords: Sequence[str]) -> MultiModalInput:
    """Render one input for the engine: no hashing, no processor run, no cache.

    The tensors go as one list, which vLLM leaves alone. Tensors it stacks, and fails, for all requests of the step,
    where they differ in dtype, or casts one to the dtype of another; of requests that differ in keywords it keeps the
    last ones only.
    """
    values = [as_tensor(tensors.get(name, _ABSENT)) for name in keywords]
    return _raw_input({FIELD: [values]})


def as_keyword_input(tensors: Mapping[str, Any]) -> MultiModalInput:
    """Render one input for a model that is written for vLLM: each keyword a field, batched as vLLM does it."""
    return _raw_input({name: [as_tensor(value)] for name, value in tensors.items()})


def as_tensor(value: Any) -> torch.Tensor:
    """An array or tensor as a tensor; one that is read-only, turned round or of another byte order is copied."""
    import torch

    if isinstance(value, np.ndarray):
        value = np.require(value, value.dtype.newbyteorder("="), ["C", "W"])
    return torch.as_tensor(value)


def _raw_input(batch: dict[str, Any]) -> MultiModalInput:
    from vllm.inputs import mm_input
    from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems, PlaceholderRange

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
        if str(value.dtype) != "torch.bool" or value.shape != _ABSENT.shape
    }
