"""TensorSpec: shape and dtypes of a tensor that a model's ``forward`` takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError, RegistrationError

Axis: TypeAlias = int | tuple[int, int]
"""The one size of an axis, or the least and the most."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What one keyword of ``forward`` takes, without the batch axis; RegistrationError where it is malformed."""

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
        """Raise InputError where an array, or a tensor of torch, has another shape or dtype."""
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


def _bounds(axis: Axis) -> tuple[int, int]:
    return (axis, axis) if isinstance(axis, int) else axis
