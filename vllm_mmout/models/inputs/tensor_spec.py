"""`TensorSpec`: shape and dtypes of a tensor for a model's ``forward``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError, RegistrationError

Axis: TypeAlias = int | tuple[int, int]
"""Size of an axis, or its smallest and its largest size."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Specification of one keyword of ``forward``, without the batch axis; raises RegistrationError if malformed."""

    shape: tuple[Axis, ...]
    """Size of each axis, or its (smallest, largest) size."""
    dtypes: tuple[str, ...] = ("float32",)
    """Names of numpy dtypes, the preferred one first."""

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
                raise RegistrationError(f"{name!r} is not a dtype of numpy; name one, such as 'float32'") from error

    def check(self, keyword: str, tensor: Any) -> None:
        """Raise InputError if an array or torch tensor has another shape or dtype."""
        fits = len(tensor.shape) == len(self.shape) and all(
            _bounds(axis)[0] <= size <= _bounds(axis)[1] for axis, size in zip(self.shape, tensor.shape, strict=True)
        )
        dtype = str(tensor.dtype).removeprefix("torch.")
        if not fits or dtype not in self.dtypes:
            raise InputError(
                f"{keyword} must be {self}, got {dtype} {list(tensor.shape)}; give tensors without the batch axis"
            )

    def zeros(self) -> NDArray[Any]:
        """Return the largest tensor, all zero, of the preferred dtype."""
        return np.zeros([_bounds(axis)[1] for axis in self.shape], self.dtypes[0])

    def __str__(self) -> str:
        axes = ", ".join(str(axis) if isinstance(axis, int) else f"{axis[0]}..{axis[1]}" for axis in self.shape)
        return f"{' or '.join(self.dtypes)} [{axes}]"


def _bounds(axis: Axis) -> tuple[int, int]:
    return (axis, axis) if isinstance(axis, int) else axis
