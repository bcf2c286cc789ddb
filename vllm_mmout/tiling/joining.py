"""Joining: tiles on their way into a raster, rectangle by rectangle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from vllm_mmout.errors import DecodeError
from vllm_mmout.outputs import RasterOutput
from vllm_mmout.outputs.placing import merged, resized_mask
from vllm_mmout.tiling.blending import Contribution, averaged
from vllm_mmout.tiling.canvas import Canvas
from vllm_mmout.tiling.plan import Cell, Plan
from vllm_mmout.tiling.traits import Traits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from vllm_mmout.outputs.growing import Growing
    from vllm_mmout.outputs.source import Source
    from vllm_mmout.outputs.stored import StoredRaster

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
        growing: Growing | None = None,
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
