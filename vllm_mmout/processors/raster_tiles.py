"""`RasterTiles`, a sequence of the rasters of several tiles. All rasters have the same metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from vllm_mmout.outputs import RasterOutput

if TYPE_CHECKING:
    from numpy.typing import NDArray


class RasterTiles(Sequence[RasterOutput]):
    """Sequence of the rasters of several tiles, which have equal size and metadata and differ only in their pixels.

    Each `RasterOutput` is created when it is accessed.
    """

    def __init__(self, array: NDArray[Any], like: RasterOutput) -> None:
        """Store the pixels of all tiles [tiles, bands, height, width], and a raster ``like`` with their metadata."""
        self.array = array
        self.like = like

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, index: int) -> RasterOutput: ...

    @overload
    def __getitem__(self, index: slice) -> RasterTiles: ...

    def __getitem__(self, index: int | slice) -> RasterOutput | RasterTiles:
        if isinstance(index, slice):
            return RasterTiles(self.array[index], self.like)
        return RasterOutput(self.array[index], **self.like.described)
