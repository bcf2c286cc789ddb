"""`Part`, a decoded part of a request, such as a tile of a scene, and `PartBlock`, the parts of one engine request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from vllm_mmout.geo import Window


@dataclass(frozen=True, slots=True)
class Part:
    """A decoded part of a user's request, such as a tile of a scene, as passed to ``assemble``."""

    index: int
    """Index of the part within the user's request, from 0."""
    window: Window | None
    """Window of the tile in the input, or None if the input was not cut into tiles. If the request selects a region of
    the input by ``window``, ``bbox`` or ``aoi``, the window is relative to the upper left corner of this region."""
    output: Any
    """Return value of ``decode`` for the part. None if the part lacks valid pixels and was not sent to the model."""
    valid: NDArray[np.bool_] | None = None
    """Validity mask of the tile, bool [height, width]. None if all pixels are valid."""


class PartBlock(Sequence[Part]):
    """Sequence of the parts of one engine request, such as decoded tiles. A `Part` is created when it is accessed."""

    def __init__(self, parts: Sequence[Part], outputs: Sequence[Any]) -> None:
        """Store parts and their outputs, in the same order. Item i is a copy of ``parts[i]`` with ``outputs[i]``."""
        self.parts = parts
        self.outputs = outputs

    def __len__(self) -> int:
        return len(self.parts)

    @overload
    def __getitem__(self, index: int) -> Part: ...

    @overload
    def __getitem__(self, index: slice) -> PartBlock: ...

    def __getitem__(self, index: int | slice) -> Part | PartBlock:
        if isinstance(index, slice):
            return PartBlock(self.parts[index], self.outputs[index])
        return replace(self.parts[index], output=self.outputs[index])
