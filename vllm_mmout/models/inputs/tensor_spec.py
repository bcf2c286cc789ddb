"""Define `TensorSpec`, the shape and dtypes that a model's ``forward`` accepts for a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError, RegistrationError

Axis: TypeAlias = int | tuple[int, int]
"""Size of an axis, or its (minimum, maximum) size."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtypes that ``forward`` accepts for one keyword, without the batch axis.

    Raises:
        RegistrationError: an axis or a dtype is malformed.

    """

    shape: tuple[Axis, ...]
    """Size of each axis, or its (minimum, maximum) size."""
    dtypes: tuple[str, ...] = ("float32",)
    """Names of the accepted numpy dtypes, the preferred dtype first."""

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
        """Raise InputError if the shape or dtype of ``tensor`` does not match this `TensorSpec`.

        ``keyword`` is the tensor's name in the error message.
        """
        fits = len(tensor.shape) == len(self.shape) and all(
            _bounds(axis)[0] <= size <= _bounds(axis)[1] for axis, size in zip(self.shape, tensor.shape, strict=True)
        )
        dtype = str(tensor.dtype).removeprefix("torch.")
        if not fits or dtype not in self.dtypes:
            raise InputError(
                f"{keyword} must be {self}, got {dtype} {list(tensor.shape)}; give tensors without the batch axis"
            )

    def zeros(self) -> NDArray[Any]:
        """Return an array of zeros with the maximum size of each axis and the first of the allowed dtypes."""
        return np.zeros([_bounds(axis)[1] for axis in self.shape], self.dtypes[0])

    def __str__(self) -> str:
        axes = ", ".join(str(axis) if isinstance(axis, int) else f"{axis[0]}..{axis[1]}" for axis in self.shape)
        return f"{' or '.join(self.dtypes)} [{axes}]"


def _bounds(axis: Axis) -> tuple[int, int]:
    return (axis, axis) if isinstance(axis, int) else axis
