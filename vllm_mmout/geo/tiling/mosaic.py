"""Joining the tiles of a raster as they come, in any order, into a GeoTIFF."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from vllm_mmout.errors import DecodeError
from vllm_mmout.geo.tiling.blending import Blend, Contribution, averaged
from vllm_mmout.geo.tiling.canvas import Canvas, Traits
from vllm_mmout.geo.tiling.grid import Cell, Plan
from vllm_mmout.outputs import RasterOutput
from vllm_mmout.outputs.base import merged, resized_mask

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from vllm_mmout.geo.tiling.grid import TileGrid
    from vllm_mmout.outputs.base import Source
    from vllm_mmout.outputs.partial_images import PartialImages
    from vllm_mmout.outputs.stored import StoredRaster
    from vllm_mmout.processors.base import Part


def mosaic(
    parts: Iterable[Part],
    grid: TileGrid,
    *,
    blend: Blend,
    finish: Finish | None,
    folder: Path | None,
    source: Source,
    growing: PartialImages | None = None,
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
        self, grid: TileGrid, blend: Blend, finish: Finish | None, folder: Path | None, growing: PartialImages | None
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


Finish: TypeAlias = Callable[[RasterOutput], RasterOutput]
"""Makes of joined values what was asked for, pixel by pixel."""


class Joining:
    """Puts tiles together: where one alone counts it is the result, elsewhere a copy waits for the others.

    Args:
        plan: where the tiles lie.
        first: the output of any tile; the others must be alike.
        finish: makes the result of joined values, None where they are it.
        folder: where the file is made.
        growing: shown each rectangle that is finished, in the thread that joins; None: nobody looks.

    Raises:
        SaveError: the file cannot be made.

    """

    def __init__(
        self,
        plan: Plan,
        first: RasterOutput,
        finish: Finish | None,
        folder: Path | None,
        growing: PartialImages | None = None,
    ) -> None:
        self._plan = plan
        self._traits = Traits.of(first)
        self._make = finish
        self._metadata = dict(first.metadata)
        pixel = self._finished(first.array[:, :1, :1])
        self._finished_traits = Traits.of(pixel)
        self._finished_metadata = pixel.metadata
        self._waiting: dict[Cell, list[Contribution | None]] = {}
        self._canvas = Canvas(folder, plan.size, self._finished_traits)
        self._growing = growing
        if growing is not None:
            growing.begin(plan.size, pixel)

    def take(self, index: int, output: RasterOutput, valid: NDArray[np.bool_] | None) -> None:
        """Take a tile.

        Args:
            index: its number.
            output: what was made of it.
            valid: bool [height, width] of the tile in the scene, False where there is no observation.

        Raises:
            DecodeError: the output differs from the others, or has no room for nodata.
            SaveError: a block cannot be written.

        """
        self._traits.check(output)
        if (output.height, output.width) != self._plan.output_size:
            raise DecodeError(
                f"its output has {output.height} x {output.width} pixels, that of the first tile that came"
                f" {self._plan.output_size[0]} x {self._plan.output_size[1]}; make it the same for all"
            )
        self._metadata = dict(self._metadata.items() & output.metadata.items())
        if valid is not None:
            valid = None if valid.all() else resized_mask(valid, self._plan.visible(index))
        for cell in self._plan.cells(index):
            here = self._plan.within(index, cell)
            values, shown = output.array[:, *here], None if valid is None else valid[here]
            if self._plan.covers(cell) == 1:
                self._put(cell, values, shown)
            else:
                shown = None if shown is None or shown.all() else shown.copy()
                self._wait(cell, Contribution(index, values.copy(), self._plan.weight(index, cell), shown))

    def leave_out(self, index: int) -> None:
        """Take a tile without any observation.

        Raises:
            DecodeError: the dtype has no room for nodata.
            SaveError: a block cannot be written.

        """
        for cell in self._plan.cells(index):
            if self._plan.covers(cell) == 1:
                self._canvas.leave_out(*self._plan.place(cell))
            else:
                self._wait(cell, None)

    def whole(self, source: Source) -> StoredRaster:
        """Make the raster, once all tiles were taken.

        Raises:
            SaveError: the file cannot be written.

        """
        georeference = source.georeference
        if georeference is not None:
            georeference = georeference.resized((self._plan.grid.height, self._plan.grid.width), self._plan.size)
        shared = dict(sorted(self._metadata.items()))
        metadata = merged(source.metadata, {**shared, **self._finished_metadata})
        return self._canvas.finish(georeference, metadata)

    def discard(self) -> None:
        """Remove what is on the disk, and forget what waits."""
        self._waiting.clear()
        self._canvas.discard()

    def _wait(self, cell: Cell, one: Contribution | None) -> None:
        """Keep what a tile says of a rectangle until all have said it."""
        came = self._waiting.setdefault(cell, [])
        came.append(one)
        if len(came) < self._plan.covers(cell):
            return
        del self._waiting[cell]
        given = sorted((each for each in came if each is not None), key=lambda each: each.tile)
        if given:
            self._put(cell, averaged(given, self._traits.nodata), _any_valid(given))
        else:
            self._canvas.leave_out(*self._plan.place(cell))

    def _put(self, cell: Cell, values: NDArray[Any], shown: NDArray[np.bool_] | None) -> None:
        """Finish a rectangle and hand it on."""
        row, col, height, width = self._plan.place(cell)
        finished = self._finished(values)
        if (finished.height, finished.width) != (height, width):
            raise DecodeError(
                f"finish made {finished.height} x {finished.width} pixels of {height} x {width}; it must keep them"
            )
        self._canvas.put(row, col, finished, shown)
        if self._growing is not None:
            self._growing.put(row, col, finished, shown)

    def _finished(self, values: NDArray[Any]) -> RasterOutput:
        """What was asked for, of joined values."""
        traits = self._traits
        joined = RasterOutput(
            values,
            nodata=traits.nodata,
            band_names=traits.band_names,
            units=traits.units,
            class_names=traits.class_names,
            palette=traits.palette,
        )
        return joined if self._make is None else self._make(joined)


def _any_valid(given: list[Contribution]) -> NDArray[np.bool_] | None:
    """Where any of some contributions is valid; None for everywhere."""
    shown: NDArray[np.bool_] | None = None
    for number, one in enumerate(given):
        if one.valid is None:
            return None
        shown = one.valid if number == 0 or shown is None else shown | one.valid
    return shown
