"""TensorOutput: arrays as the model gave them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np

from vllm_mmout.errors import InputError, SaveError
from vllm_mmout.outputs.arrays import as_numpy
from vllm_mmout.outputs.base import MediaOutput, no_options

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ALONE = "output"
_AT_ONCE = 1 << 15
"""Numbers that become JSON at once: a millisecond or two."""
_NUMPYS_OWN = frozenset({"file", "allow_pickle"})
"""Names that numpy.savez takes for its own arguments."""


class TensorOutput(MediaOutput):
    """One array, or several by name.

    Files are .npz, .npy of one array, or .json: an object of nested lists by name ("output" is that of one alone), null
    for what is no number.

    Args:
        data: an array (or torch tensor; bfloat16 becomes float32), or a mapping of names to arrays.

    Raises:
        InputError: the mapping is empty, a name is not text, or an array holds Python objects.

    """

    formats: ClassVar[dict[str, str]] = {".npz": "npz", ".npy": "npy", ".json": "json"}

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
    def array(self) -> NDArray[Any]:
        """The array, where there is one only.

        Raises:
            InputError: there are several.

        """
        if len(self.arrays) > 1:
            raise InputError(
                f"the output has {len(self.arrays)} arrays ({', '.join(self.arrays)}); choose from .arrays"
            )
        return next(iter(self.arrays.values()))

    def __repr__(self) -> str:
        listed = ", ".join(f"{name}: {array.dtype} {list(array.shape)}" for name, array in self.arrays.items())
        where = f", path={self.path!r}" if self.path else ""
        return f"TensorOutput({listed}{where})"

    def _encode(self, name: str, options: dict[str, Any]) -> bytes:
        no_options(name, options)
        buffer = BytesIO()
        if name == "npz":
            save_arrays(buffer, self.arrays)
        elif name == "json":
            buffer.writelines(_as_json(self.arrays))
        elif len(self.arrays) > 1:
            raise SaveError(f".npy holds one array, the output has {len(self.arrays)}; save it as .npz")
        else:
            np.save(buffer, self.array, allow_pickle=False)
        return buffer.getvalue()


def _as_json(arrays: Mapping[str, NDArray[Any]]) -> Iterator[bytes]:
    """An object of nested lists by name, piece by piece; null for what is no number."""
    opening = b"{"
    for name, array in arrays.items():
        if array.dtype.kind not in "biufUS":
            raise SaveError(f"JSON has no numbers of {array.dtype}; save {name!r} as .npz")
        yield opening + msgspec.json.encode(name) + b":"
        yield from _lists(array)
        opening = b","
    yield b"}"


def _lists(array: NDArray[Any]) -> Iterator[bytes]:
    """An array as nested lists; few numbers at a time, as no other thread runs while they are made."""
    if array.size <= _AT_ONCE:
        yield msgspec.json.encode(array.tolist())
        return
    step = _AT_ONCE // (array.size // len(array))
    opening = b"["
    for start in range(0, len(array), max(step, 1)):
        yield opening
        if step:
            yield msgspec.json.encode(array[start : start + step].tolist())[1:-1]
        else:
            yield from _lists(array[start])
        opening = b","
    yield b"]"


def save_arrays(buffer: BytesIO, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays by name as a compressed .npz.

    Raises:
        SaveError: a name cannot be one of an archive.

    """
    for name in arrays:
        if name in _NUMPYS_OWN or "/" in name or "\\" in name:
            raise SaveError(f"an .npz cannot hold an array named {name!r}; rename it")
    np.savez_compressed(buffer, allow_pickle=False, **dict(arrays))
