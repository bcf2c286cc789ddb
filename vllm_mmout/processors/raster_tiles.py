"""`RasterTiles`, the rasters of a block of tiles, which share their metadata."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, overload

from vllm_mmout.outputs import RasterOutput
from vllm_mmout.processors.raw import each, named, own_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import OutputProcessor, Raw


class RasterTiles(Sequence[RasterOutput]):
    """Rasters of equal size that differ in their pixels only.

    A `RasterOutput` is created when it is requested.
    """

    def __init__(self, array: NDArray[Any], like: RasterOutput) -> None:
        """Wrap the pixels of all tiles, [tiles, bands, height, width], and a raster with their metadata."""
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


def has_method(instance: object, method: Any) -> bool:
    """Return whether an object has a method of its class unchanged, neither overridden nor replaced."""
    return getattr(getattr(instance, method.__name__), "__func__", None) is method


def decoded_tiles(processor: OutputProcessor, raw: Raw, params: OutputParams) -> RasterTiles:
    """Decode a block of tiles whose pixels are the values of one tensor, and whose metadata are those of any tile.

    ``raw`` is the return value of ``reduce`` with the tiles on axis 0. The processor decodes the first tile, and so
    checks dtype and shape.
    """
    like: RasterOutput = processor.decode(each(itemgetter(0), raw), params)
    (tensor,) = named(raw).values()
    array = own_array(tensor)
    return RasterTiles(array.reshape(len(array), *like.array.shape), like)
