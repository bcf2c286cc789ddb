"""`Part`: a decoded part of a request, such as a tile of a scene. `PartBlock`: the parts of one engine request."""

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
    """A decoded part of a user's request, as passed to ``assemble``."""

    index: int
    """Index of the part within the request, from 0."""
    window: Window | None
    """Window of the part in the input, or in its requested ``window``. None if the input is not a raster."""
    output: Any
    """Return value of ``decode``, or None if all pixels are invalid and the part was not sent to the model."""
    valid: NDArray[np.bool_] | None = None
    """Mask of the window, bool [height, width], False for pixels that are not valid. None if all pixels are valid."""


class PartBlock(Sequence[Part]):
    """Decoded parts of one engine request. A `Part` with its output is created when it is accessed."""

    def __init__(self, parts: Sequence[Part], outputs: Sequence[Any]) -> None:
        """Combine parts, whose ``output`` is None, with an output for each of them."""
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
