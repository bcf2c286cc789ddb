"""Scene: a raster that does not fit one forward, as tiles that go through the engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_mmout.engine.parts.fan_out import FanOut
from vllm_mmout.engine.parts.parts_request import Driver, PartedRequest, StoppedError
from vllm_mmout.engine.request.request import PartInput
from vllm_mmout.errors import DecodeError, InputError, MMOutError, OptionError, raise_interrupt, type_and_message
from vllm_mmout.geo import TileGrid, reflected
from vllm_mmout.outputs.base import Source
from vllm_mmout.outputs.formats.geotiff import remove_saved
from vllm_mmout.outputs.partial_images import PartialImages
from vllm_mmout.processors.base import Part, Parts

if TYPE_CHECKING:
    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.engine.request.request import Finish
    from vllm_mmout.engine.trace import Traced
    from vllm_mmout.models.inputs.raster_view import Pixels, RasterView
    from vllm_mmout.outputs.partial_images import PreviewRequest
    from vllm_mmout.params import OutputParams

_DECODED_AT_ONCE = 32 << 20
"""Bytes of decoded segments that a group of tile columns may keep, where the file's layout leaves a choice."""


@dataclass(frozen=True, slots=True)
class Scene(PartedRequest):
    """One input that is cut into tiles; holds an open file until it is closed."""

    view: RasterView
    grid: TileGrid
    params: OutputParams
    binding: Binding
    finish: Finish
    folder: Path | None
    """Where a result on disk is made."""
    reopen: Callable[[], RasterView] | None = None
    """Opens the input once more; None where it can be read once alone."""

    @property
    def tile_params(self) -> OutputParams:
        """The params of each tile's request."""
        return self.params.of_part(window=None, bbox=None, bbox_crs=None, path=None, partial_images=0)

    @property
    def pixels(self) -> int:
        """Pixels of the scene."""
        return self.grid.height * self.grid.width

    @property
    def assumed(self) -> tuple[str, ...]:
        """What was assumed about its input, in sentences."""
        return self.view.assumed

    @property
    def can_wait(self) -> bool:
        """Whether its input can be closed meanwhile, and opened again."""
        return self.reopen is not None

    def check_tiles(self, most: int) -> None:
        """Refuse, and close, a scene that is cut into more tiles than a request may have."""
        grid = self.grid
        if len(grid) > most:
            self.close()
            shared = " or a smaller overlap," if grid.overlap else ""
            raise InputError(
                f"the input of {grid.height} x {grid.width} pixels makes {len(grid)} tiles of {grid.said} with an"
                f" overlap of {grid.overlap}, and a request may have {most}; choose a larger tile,{shared} or cut out a"
                " part with window=...; a server's limit is --mmout-max-tiles",
                param="tile",
            )

    def made_in(self, folder: Path | None) -> Scene:
        """The same with a folder where a result on disk is made that has no ``path``."""
        return replace(self, folder=self.folder or folder)

    def growing(self, notify: Callable[[], None], watch: PreviewRequest | None = None) -> PartialImages | None:
        """What makes the pictures of the growing result; None where none were asked for, and nobody may ask."""
        wanted = self.params.partial_images
        return PartialImages(wanted, len(self.grid), notify, watch) if wanted or watch is not None else None

    def fan_out(self, driver: Driver) -> FanOut:
        """The scene's request, not started; it reads and closes the input, and shows the first pick's result."""
        height, width = self.grid.sides
        if self.grid.edge == "shift":
            height, width = min(height, self.view.size[0]), min(width, self.view.size[1])
        total = len(self.grid)
        return FanOut(
            self._tiles(driver.traced),
            total=total,
            nbytes=height * width * len(self.view.bands) * self.view.itemsize,
            picks=self.binding.choice.pick(self.params.processor),
            join=partial(self._join, growing=driver.growing),
            deliver=self._deliver,
            budget=driver.budget,
            wake=driver.wake,
            count=lambda done: driver.observer.tile(self.pixels * done // total - self.pixels * (done - 1) // total),
            traced=driver.traced,
        )

    def pause(self) -> None:
        """Close the input until it is read, where it can be opened again: many scenes may wait for their turn."""
        if self.reopen is not None:
            self.close()

    def close(self) -> None:
        """Close the input."""
        self.view.close()

    def _opened(self) -> RasterView:
        """The input, open."""
        if not self.view.raster.closed or self.reopen is None:
            return self.view
        view = self.reopen()
        if not view.same_as(self.view):
            view.close()
            raise InputError(f"{view.raster.name} was changed while it waited for its turn; send it again")
        return view

    def _tiles(self, traced: Traced | None) -> Generator[PartInput, None, None]:
        """Read the tiles, in an order in which each segment of the file is decoded at most twice."""
        left = len(self.grid)
        sent = 0
        with self._opened() as view:
            for group in self.grid.groups(columns_at_once(self.grid, view)):
                windows = [self.grid.window(index) for index in group]
                pixels = view.windows(windows)
                for index, window in zip(group, windows, strict=True):
                    left -= 1
                    where = f"tile {index + 1} of {len(self.grid)} ({view.in_input(window)})"
                    began = 0.0 if traced is None else time.monotonic()
                    try:
                        seen = next(pixels)
                    except InputError as error:
                        raise InputError(f"{where}: {error}") from error
                    tile = None if traced is None else traced.of_tile(index)
                    read = 0.0 if tile is None else tile.stage("read", began)
                    # One is sent in any case: what the result is like, its dtype and bands, only the model says.
                    send = seen.observed or not (left or sent)
                    sent += send
                    prompt = self._prompt(seen, index) if send else None
                    if tile is not None and send:
                        tile.stage("map", read)
                    yield PartInput(index, window, prompt, seen.valid, where)

    def _prompt(self, pixels: Pixels, index: int) -> Any:
        inputs = self.binding.inputs
        if inputs is None:
            raise TypeError("a model without an input mapper has no scenes")
        mapped = inputs.tile(self.view, reflected(pixels.array, self.grid.padding(index)))
        return inputs.render(mapped, inputs.tokens(mapped, self.params))

    def _join(self, name: str, parts: Iterator[Part], growing: PartialImages | None) -> Any:
        """Join the tiles of one pick, in a thread of its own."""
        processor = self.binding.processors[name]
        view = self.view
        source = Source(
            size=view.size, georeference=view.georeference, metadata=view.raster.metadata, assumed=view.assumed
        )
        joined = Parts(
            parts,
            grid=self.grid,
            source=source.made_by(self.binding.model, name),
            folder=self.folder,
            growing=growing if name == self.binding.choice.pick(self.params.processor)[0] else None,
        )
        try:
            output = processor.assemble(joined, self.tile_params)
        except (MMOutError, StoppedError):
            raise
        except BaseException as error:  # SystemExit too: it must not leave the caller's process
            raise_interrupt(error)
            raise DecodeError(
                f"{type(processor).__name__} ({name}) failed to join tiles: {type_and_message(error)}"
            ) from error
        if output is None:
            raise DecodeError(
                f"{type(processor).__name__} ({name}) returned None; assemble() must return an output object"
            )
        return joined.source.lay(output)

    def _deliver(self, results: Mapping[str, Any]) -> Mapping[str, Any]:
        """Write the results where asked: all of them, or none."""
        several = isinstance(self.params.processor, tuple)
        delivered: dict[str, Any] = {}
        try:
            for name, output in results.items():
                delivered[name] = self.finish(output, name if several else None)
        except BaseException:
            if self.params.path is not None:
                for output in delivered.values():
                    remove_saved(output.path)
            raise
        return delivered


def cut(binding: Binding, view: RasterView, params: OutputParams) -> TileGrid | None:
    """How an input is cut into tiles; None for one that fits one forward."""
    mapper = view.mapper
    tile, tile_width = mapper.tile_sides(params.tile)
    if 2 * params.overlap > min(tile, tile_width):
        raise OptionError(
            f"overlap must be at most half a tile, got {params.overlap} for tiles of {min(tile, tile_width)}; choose a"
            f" smaller overlap or a larger tile, up to {mapper.max_size}",
            param="overlap",
        )
    if mapper.fits(view.size) and (params.tile is None or max(view.size) <= params.tile):
        return None
    for name in binding.choice.pick(params.processor):
        if not binding.processors[name].joins_parts:
            raise _not_joined(name, view, params)
    (tile, tile_width), edge = mapper.tiled(view.size, params)
    return TileGrid(*view.size, tile, params.overlap, edge, tile_width)


def columns_at_once(grid: TileGrid, view: RasterView) -> int:
    """How many columns of tiles to read before going back up.

    What is decoded stays in memory from one row of tiles to the next, so fewer columns take less. A group is wide
    enough that no segment of the file lies in more than two.
    """
    block_height, block_width = view.raster.block
    height, width = grid.sides
    stride = width - grid.overlap
    rows = -(-height // block_height) + 1
    a_column = view.raster.block_bytes * rows * max(1.0, stride / block_width)
    least = -(-(block_width + width) // stride)
    return max(1, min(len(grid.cols), max(least, int(_DECODED_AT_ONCE / a_column))))


def _not_joined(processor: str, view: RasterView, params: OutputParams) -> MMOutError:
    """The error of an input that has to be cut, for a processor that cannot join what was cut."""
    mapper = view.mapper
    if mapper.fits(view.size):
        return OptionError(
            f"output processor {processor!r} cannot join tiles; leave tile={params.tile} out", param="tile"
        )
    height, width = view.size
    takes = f"model {mapper.model!r} takes {mapper.sizes} in one forward"
    if mapper.too_small(view.size):
        remedy = "scale the input up"
    elif max(view.size) > mapper.max_size:
        remedy = "scale it down, or cut out a part with window=..."
    else:
        remedy = "scale it, or cut out a part with window=..."
    return InputError(
        f"the input is {height} x {width} pixels, {takes}, and output processor {processor!r} cannot join tiles;"
        f" {remedy}, or choose another processor"
    )
