"""Joining the tiles of a raster as they come, in any order, into a GeoTIFF."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_mmout.errors import DecodeError
from vllm_mmout.outputs import RasterOutput
from vllm_mmout.tiling.joining import Finish, Joining
from vllm_mmout.tiling.plan import Plan
from vllm_mmout.tiling.weights import Blend

if TYPE_CHECKING:
    from vllm_mmout.outputs.growing import Growing
    from vllm_mmout.outputs.source import Source
    from vllm_mmout.outputs.stored import StoredRaster
    from vllm_mmout.processors.base import Part
    from vllm_mmout.tiling.grid import TileGrid


def mosaic(
    parts: Iterable[Part],
    grid: TileGrid,
    *,
    blend: Blend,
    finish: Finish | None,
    folder: Path | None,
    source: Source,
    growing: Growing | None = None,
) -> StoredRaster:
    """Join tiles into one raster on disk. The result does not depend on the order in which they come.

    What waits in memory: blocks of the file that are partly filled, and pixels whose other tiles have not come. In
    order of the grid that grows with a side of the scene where tiles overlap, never with its area.

    Args:
        parts: one a tile of the grid, all of them; an output may have more or fewer pixels than its tile.
        grid: where the tiles lie.
        blend: how values are averaged where tiles overlap; integers are not, they are joined as with "none".
        finish: called on rectangles of joined values, of any size; None: they are the result.
        folder: where the file is made, None for the system's folder for temporary files.
        source: the scene.
        growing: shown what is finished, and told of each tile; None: nobody looks.

    Raises:
        DecodeError: an output is no raster, does not fit the others, its tile or the scene, or a tile is missing.
        SaveError: the file cannot be written.

    """
    arrivals = _Arrivals(grid, blend, finish, folder, growing)
    try:
        for part in parts:
            arrivals.add(part)
            if growing is not None:
                growing.joined()
        return arrivals.whole(source)
    except BaseException:
        if arrivals.joining is not None:
            arrivals.joining.discard()
        raise


class _Arrivals:
    """Counts the tiles in, and keeps empty ones until the first with an output says what the raster is."""

    def __init__(
        self, grid: TileGrid, blend: Blend, finish: Finish | None, folder: Path | None, growing: Growing | None
    ) -> None:
        self._grid = grid
        self._blend = blend
        self._finish = finish
        self._folder = folder
        self._growing = growing
        self._came = bytearray(len(grid))
        self._empty = array("q")
        self.joining: Joining | None = None

    def add(self, part: Part) -> None:
        """Take a part."""
        if not 0 <= part.index < len(self._grid) or self._came[part.index]:
            raise DecodeError(f"tile {part.index} of {len(self._grid)} came twice, or there is no such tile")
        self._came[part.index] = True
        try:
            self._take(part)
        except DecodeError as error:
            raise DecodeError(f"tile of {part.window or self._grid.window(part.index)}: {error}") from error

    def whole(self, source: Source) -> StoredRaster:
        """Make the raster of all tiles."""
        missing = self._came.find(0)
        if missing >= 0:
            raise DecodeError(f"the tile of {self._grid.window(missing)} never came; the scene is not whole")
        if self.joining is None:
            raise DecodeError("no tile of the scene has an observation; there is nothing to make a raster of")
        return self.joining.whole(source)

    def _take(self, part: Part) -> None:
        if part.output is None:
            if self.joining is None:
                self._empty.append(part.index)
            else:
                self.joining.leave_out(part.index)
            return
        if not isinstance(part.output, RasterOutput):
            raise DecodeError(
                f"got a {type(part.output).__name__}, only a RasterOutput can be joined; define assemble() in the"
                " processor"
            )
        if self.joining is None:
            plan = Plan.make(self._grid, part.index, part.output, self._blend)
            self.joining = Joining(plan, part.output, self._finish, self._folder, self._growing)
            for index in self._empty:
                self.joining.leave_out(index)
            self._empty = array("q")
        self.joining.take(part.index, part.output, part.valid)
