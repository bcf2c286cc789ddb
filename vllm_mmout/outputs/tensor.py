"""TensorOutput, the output of models as arrays that are not processed further."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from vllm_mmout.errors import InputError
from vllm_mmout.outputs.base import MediaOutput, as_numpy
from vllm_mmout.outputs.formats import formats_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ALONE = "output"


class TensorOutput(MediaOutput):
    """Output of a model as a single array, or as several arrays by name.

    File formats are .npz, .npy for a single array, and .json (an object that maps names to nested lists). The name of
    a single array is "output". In JSON, NaN and infinities are null.

    Args:
        data: an array, a torch tensor (bfloat16 becomes float32), or a mapping of names to arrays.

    Raises:
        InputError: the mapping is empty, a name is not text, or an array holds Python objects.

    """

    output_kinds: ClassVar[tuple[str, ...]] = ("tensor",)
    formats: ClassVar[dict[str, str]] = formats_of("tensor")

    def __init__(self, data: Any) -> None:
        named = dict(data) if isinstance(data, Mapping) else {_ALONE: data}
        if not named or not all(isinstance(name, str) and name for name in named):
            raise InputError(f"TensorOutput takes an array, or arrays by name, got names {list(named)}")
        self.arrays: dict[str, NDArray[Any]] = {name: as_numpy(value) for name, value in named.items()}
        self.path = None
        for name, array in self.arrays.items():
            if array.dtype.hasobject:
                raise InputError(f"array {name!r} holds Python objects; give numbers, or return a StructuredOutput")

    @property
    def nbytes(self) -> int:
        """Size of all arrays in memory, in bytes."""
        return sum(array.nbytes for array in self.arrays.values())

    @property
    def array(self) -> NDArray[Any]:
        """The output's array, if there is only one. InputError is raised if the output has several arrays."""
        if len(self.arrays) > 1:
            raise InputError(
                f"the output has {len(self.arrays)} arrays ({', '.join(self.arrays)}); choose from .arrays"
            )
        return next(iter(self.arrays.values()))

    def __repr__(self) -> str:
        listed = ", ".join(f"{name}: {array.dtype} {list(array.shape)}" for name, array in self.arrays.items())
        where = f", path={self.path!r}" if self.path else ""
        return f"TensorOutput({listed}{where})"
