"""Join the tiles of a raster, which arrive in any order, into a GeoTIFF."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import DecodeError
from vllm_mmout.geo import Blend, Cell, Contribution, Plan, TileGrid, averaged
from vllm_mmout.outputs import RasterOutput
from vllm_mmout.outputs.base import merged, resized_mask
from vllm_mmout.processors.canvas import Canvas, check_alike
from vllm_mmout.processors.part import PartBlock
from vllm_mmout.processors.raster_tiles import RasterTiles

if TYPE_CHECKING:
    from vllm_mmout.geo import Georeference
    from vllm_mmout.outputs.base import Source
    from vllm_mmout.outputs.partial_images import PartialImages
    from vllm_mmout.outputs.stored import StoredRaster
    from vllm_mmout.processors.part import Part

Finish: TypeAlias = Callable[[RasterOutput], RasterOutput]
"""Function that computes the final pixels of a joined raster, such as class ids from averaged probabilities.

It must compute each pixel independently, since it is called with rectangles of any size."""


def mosaic(
    blocks: Iterable[Sequence[Part]],
    grid: TileGrid,
    *,
    blend: Blend,
    finish: Finish | None,
    folder: Path | None,
    source: Source,
    growing: PartialImages | None = None,
) -> StoredRaster:
    """Join the tiles of a grid into one raster on disk. The result does not depend on their order of arrival.

    Memory holds the blocks of the file that are partly filled, and pixels that wait for overlapping tiles. If tiles
    arrive in the order of the grid, that memory grows with a side of the scene, not with its area. Integers are not
    blended, but joined as with "none". If ``finish`` is None, the joined values are the result. ``growing`` receives
    each finished rectangle, and is notified of each tile.
    """
    joining = _Joining(grid, blend, finish, folder, source=source, growing=growing)
    try:
        for block in blocks:
            joining.add_block(block)
        return joining.whole()
    except BaseException:
        joining.discard()
        raise


class _Joining:
    """Raster that is joined from the tiles of a scene.

    The pixels of an overlap are kept in memory until all tiles that share the overlap have arrived. Pixels that only
    one tile covers are written immediately.

    The first tile with an output sets the dtype, bands and metadata of the raster; the other tiles must match it.
    """

    _plan: Plan
    _like: RasterOutput
    """Sample of a single pixel from the first tile with valid pixels. All tiles must have the same bands, dtype and
    nodata as the sample."""
    _metadata: dict[str, str]
    """Metadata items that all tiles joined so far have in common."""
    _finished_metadata: dict[str, str]

    def __init__(
        self,
        grid: TileGrid,
        blend: Blend,
        finish: Finish | None,
        folder: Path | None,
        *,
        source: Source,
        growing: PartialImages | None,
    ) -> None:
        self._grid = grid
        self._blend = blend
        self._make = finish
        self._folder = folder
        self._source = source
        self._growing = growing
        self._came = bytearray(len(grid))
        self._empty = array("q")
        """Indices of the tiles without valid pixels that arrived before any tile with valid pixels."""
        self._canvas: Canvas | None = None
        self._waiting: dict[Cell, list[Contribution | None]] = {}

    def add_block(self, block: Sequence[Part]) -> None:
        """Add the tiles of one engine request to the raster. The output of a tile without valid pixels is None."""
        if self._canvas is not None and self._make is None and self._growing is None and isinstance(block, PartBlock):
            tiles = block.outputs
            if isinstance(tiles, RasterTiles):
                self._add_alike(self._canvas, block, tiles)
                return
        for part in block:
            self._add(part)
            if self._growing is not None:
                self._growing.joined()

    def _add_alike(self, canvas: Canvas, block: PartBlock, tiles: RasterTiles) -> None:
        """Add tiles of equal size and metadata to the canvas. The pixels of all tiles are in one array.

        The tiles belong to the engine request ``block``. Neighbouring tiles are written together if they have neither
        overlap nor masked pixels.
        """
        if tiles.array.shape[2:] != self._plan.output_size:
            self._add(block[0])  # raises the error
        check_alike(self._like, tiles.like)
        self._metadata = dict(self._metadata.items() & tiles.like.metadata.items())
        start = 0
        while start < len(block):
            strip = self._strip(block.parts, start)
            if strip is None:
                self._add(block[start])
                start += 1
                continue
            count, cell = strip
            for part in block.parts[start : start + count]:
                self._count(part)
            row, col, _, _ = self._plan.place(cell)
            pixels = tiles.array[start : start + count, :, *self._plan.within(block.parts[start].index, cell)]
            bands, height = pixels.shape[1:3]
            canvas.put_pixels(row, col, pixels.transpose(1, 2, 0, 3).reshape(bands, height, -1))
            start += count

    def _strip(self, parts: Sequence[Part], start: int) -> tuple[int, Cell] | None:
        """Count how many neighbouring tiles, beginning with the tile at ``start``, can be written as one strip.

        Return (count, rectangle of the first tile), or None if the tile at ``start`` has masked pixels or overlaps
        another tile.
        """
        plan, first = self._plan, parts[start]
        cell = None if first.valid is not None else plan.only_cell(first.index)
        if cell is None:
            return None
        within, count = plan.within(first.index, cell), 1
        for part in parts[start + 1 :]:
            other = None if part.valid is not None else plan.only_cell(part.index)
            if other != (cell[0], cell[1] + count) or plan.within(part.index, other) != within:
                break
            count += 1
        return count, cell

    def _count(self, part: Part) -> None:
        if not 0 <= part.index < len(self._grid) or self._came[part.index]:
            raise DecodeError(f"tile {part.index} of {len(self._grid)} came twice, or there is no such tile")
        self._came[part.index] = True

    def _add(self, part: Part) -> None:
        self._count(part)
        try:
            if part.output is not None:
                self._take(part.index, _raster(part.output), part.valid)
            elif self._canvas is None:
                self._empty.append(part.index)
            else:
                self._leave_out(self._canvas, part.index)
        except DecodeError as error:
            raise DecodeError(f"tile of {part.window or self._grid.window(part.index)}: {error}") from error

    def whole(self) -> StoredRaster:
        """Return the joined raster. Raise DecodeError if a tile is missing, or no tile has valid pixels."""
        missing = self._came.find(0)
        if missing >= 0:
            raise DecodeError(f"the tile of {self._grid.window(missing)} never came; the scene is not whole")
        if self._canvas is None:
            raise DecodeError("no tile of the scene has an observation; there is nothing to make a raster of")
        own = {**dict(sorted(self._metadata.items())), **self._finished_metadata}
        return self._canvas.finish(self._georeference, merged(self._source.metadata, own))

    @property
    def _georeference(self) -> Georeference | None:
        """Georeference of the joined raster. The pixel size differs from the scene's if the model resizes tiles."""
        georeference = self._source.georeference
        return None if georeference is None else georeference.resized(self._grid.covered, self._plan.size)

    def discard(self) -> None:
        """Delete the unfinished file, and free the pixels in memory."""
        self._waiting.clear()
        if self._canvas is not None:
            self._canvas.discard()

    def _begin(self, output: RasterOutput) -> Canvas:
        """Create the canvas from the first tile with valid pixels, then add the empty tiles that arrived earlier."""
        shape = self._blend if output.dtype.kind == "f" else "none"
        self._plan = Plan.make(self._grid, (output.height, output.width), shape)
        self._like = RasterOutput(output.array[:, :1, :1].copy(), **output.described)
        self._metadata = self._like.metadata
        pixel = self._finished(self._like.array)
        self._finished_metadata = pixel.metadata
        self._canvas = Canvas(self._folder, self._plan.size, pixel)
        if self._growing is not None:
            self._growing.begin(self._plan.size, pixel, self._georeference)
        for empty in self._empty:
            self._leave_out(self._canvas, empty)
        return self._canvas

    def _take(self, index: int, output: RasterOutput, valid: NDArray[np.bool_] | None) -> None:
        canvas = self._canvas or self._begin(output)
        check_alike(self._like, output)
        if (output.height, output.width) != self._plan.output_size:
            raise DecodeError(
                f"its output has {output.height} x {output.width} pixels, that of the first tile that came"
                f" {self._plan.output_size[0]} x {self._plan.output_size[1]}; make it the same for all"
            )
        self._metadata = dict(self._metadata.items() & output.metadata.items())
        if valid is not None:
            valid = None if valid.all() else self._mask_of_result(valid, self._plan.visible(index))
        for cell in self._plan.cells(index):
            here = self._plan.within(index, cell)
            values, shown = output.array[:, *here], None if valid is None else valid[here]
            if self._plan.covers(cell) == 1:
                self._put(canvas, cell, values, shown)
            else:
                shown = None if shown is None or shown.all() else shown.copy()
                self._wait(canvas, cell, Contribution(index, values.copy(), self._plan.weight(index, cell), shown))

    def _mask_of_result(self, valid: NDArray[np.bool_], size: tuple[int, int]) -> NDArray[np.bool_]:
        """Resize a tile's mask of valid input pixels to ``size``. One valid input pixel makes an output pixel valid."""
        patch = self._grid.patch
        if patch == 1:
            return resized_mask(valid, size)
        rows, cols = (range(0, length, patch) for length in valid.shape)
        any_in_rows = np.logical_or.reduceat(valid, rows, axis=0)
        return np.logical_or.reduceat(any_in_rows, cols, axis=1)

    def _leave_out(self, canvas: Canvas, index: int) -> None:
        for cell in self._plan.cells(index):
            if self._plan.covers(cell) == 1:
                canvas.leave_out(*self._plan.place(cell))
            else:
                self._wait(canvas, cell, None)

    def _wait(self, canvas: Canvas, cell: Cell, contribution: Contribution | None) -> None:
        contributions = self._waiting.setdefault(cell, [])
        contributions.append(contribution)
        if len(contributions) < self._plan.covers(cell):
            return
        del self._waiting[cell]
        present = sorted((each for each in contributions if each is not None), key=lambda each: each.tile)
        if present:
            self._put(canvas, cell, averaged(present, self._like.nodata), _any_valid(present))
        else:
            canvas.leave_out(*self._plan.place(cell))

    def _put(self, canvas: Canvas, cell: Cell, values: NDArray[Any], shown: NDArray[np.bool_] | None) -> None:
        row, col, height, width = self._plan.place(cell)
        finished = self._finished(values)
        if (finished.height, finished.width) != (height, width):
            raise DecodeError(
                f"finish made {finished.height} x {finished.width} pixels of {height} x {width}; it must keep them"
            )
        canvas.put(row, col, finished, shown)
        if self._growing is not None:
            self._growing.put(row, col, finished, shown)

    def _finished(self, values: NDArray[Any]) -> RasterOutput:
        described = self._like.described
        described["georeference"] = described["metadata"] = None
        joined = RasterOutput(values, **described)
        return joined if self._make is None else self._make(joined)


def _raster(output: object) -> RasterOutput:
    if not isinstance(output, RasterOutput):
        raise DecodeError(
            f"got a {type(output).__name__}, only a RasterOutput can be joined; define assemble() in the processor"
        )
    return output


def _any_valid(contributions: list[Contribution]) -> NDArray[np.bool_] | None:
    shown = [contribution.valid for contribution in contributions if contribution.valid is not None]
    return np.logical_or.reduce(shown) if len(shown) == len(contributions) else None
