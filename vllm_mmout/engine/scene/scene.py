"""Scene, a raster that does not fit one forward and is cut into tiles."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_mmout.engine.request.request import PartInput
from vllm_mmout.engine.scene.lane import StoppedError
from vllm_mmout.engine.scene.run import Run
from vllm_mmout.engine.trace import stage
from vllm_mmout.errors import DecodeError, InputError, MMOutError, OptionError, raise_interrupt, type_and_message
from vllm_mmout.geo import TileGrid, reflected
from vllm_mmout.outputs.base import Source
from vllm_mmout.outputs.formats.geotiff import remove_saved
from vllm_mmout.outputs.partial_images import PartialImages
from vllm_mmout.processors.base import Parts
from vllm_mmout.processors.part import Part

if TYPE_CHECKING:
    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.engine.request.request import Request
    from vllm_mmout.models.inputs.raster_view import Pixels, RasterView
    from vllm_mmout.outputs.partial_images import PreviewRequest
    from vllm_mmout.params import OutputParams

_DECODED_AT_ONCE = 32 << 20
"""Size of the decoded segments that a group of tile columns may keep in memory, in bytes.

A group may exceed it if the segments of the file are large.
"""


class Scene(Run):
    """Run of an input that is cut into tiles. It holds an open file until it is closed."""

    def __init__(
        self,
        request: Request,
        view: RasterView,
        grid: TileGrid,
        binding: Binding,
        *,
        folder: Path | None = None,
        reopen: Callable[[], RasterView] | None = None,
    ) -> None:
        """Set up a scene without starting it.

        Args:
            request: the user's request.
            view: the opened input.
            grid: the tiles of the input.
            binding: binding of the engine.
            folder: folder for a result on disk until it is finished, or None for the system's temporary folder.
            reopen: function that opens the input again, or None if it can be read only once.

        """
        height, width = grid.sides
        if grid.edge == "shift":
            height, width = min(height, view.size[0]), min(width, view.size[1])
        super().__init__(
            request,
            binding.choice.pick(request.params.processor),
            request.params.of_part(window=None, bbox=None, bbox_crs=None, path=None, partial_images=0),
            total=len(grid),
            nbytes=height * width * len(view.bands) * view.itemsize,
        )
        self.view = view
        self.grid = grid
        self.binding = binding
        self.folder = folder
        self.reopen = reopen
        self.pixels = grid.height * grid.width
        self.can_wait = reopen is not None

    @property
    def assumed(self) -> tuple[str, ...]:
        """Sentences about assumptions made about the input."""
        return self.view.assumed

    def check_tiles(self, most: int) -> None:
        """Close the scene and raise if it has more than ``most`` tiles."""
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

    def pictures(self, notify: Callable[[], None], watch: PreviewRequest | None) -> PartialImages | None:
        """Return the maker of the pictures of the growing result, or None if no pictures are requested."""
        count = self.request.params.partial_images
        return PartialImages(count, len(self.grid), notify, watch) if count or watch is not None else None

    def pause(self) -> None:
        """Close the input until the scene starts, if it can be opened again."""
        if self.reopen is not None:
            self.close()

    def close(self) -> None:
        """Close the input."""
        self.view.close()

    def measure(self) -> tuple[int, int]:
        """Return the number of tiles and the bytes of a tile, which the grid determines."""
        return self.total, self.nbytes

    def parts(self) -> Generator[PartInput, None, None]:
        """Read and yield the tiles, ordered so that each segment of the file is decoded at most twice."""
        unread = len(self.grid)
        sent = 0
        with self._opened() as view:
            for group in self.grid.groups(columns_at_once(self.grid, view)):
                windows = [self.grid.window(index) for index in group]
                pixels = view.windows(windows)
                for index, window in zip(group, windows, strict=True):
                    unread -= 1
                    where = f"tile {index + 1} of {len(self.grid)} ({view.in_input(window)})"
                    try:
                        with stage("read", index):
                            tile = next(pixels)
                    except InputError as error:
                        raise InputError(f"{where}: {error}") from error
                    # The model alone knows the dtype and bands of its result, so at least one tile is sent.
                    send = tile.observed or not (unread or sent)
                    sent += send
                    prompt = None
                    if send:
                        with stage("map", index):
                            prompt = self._prompt(tile, index)
                    yield PartInput(index, window, prompt, tile.valid, where)

    def join(self, pick: str, parts: Iterator[Part]) -> Any:
        """Join the tiles of a processor's result. Called in a separate thread."""
        processor = self.binding.processors[pick]
        view = self.view
        source = Source(
            size=view.size, georeference=view.georeference, metadata=view.raster.metadata, assumed=view.assumed
        )
        first = self.binding.choice.pick(self.request.params.processor)[0]
        joined = Parts(
            parts,
            grid=self.grid,
            source=source.made_by(self.binding.model, pick),
            folder=self.folder,
            growing=self.growing if pick == first else None,
        )
        try:
            output = processor.assemble(joined, self.part_params)
        except (MMOutError, StoppedError):
            raise
        except BaseException as error:  # SystemExit too: it must not end the caller's process
            raise_interrupt(error)
            raise DecodeError(
                f"{type(processor).__name__} ({pick}) failed to join tiles: {type_and_message(error)}"
            ) from error
        if output is None:
            raise DecodeError(
                f"{type(processor).__name__} ({pick}) returned None; assemble() must return an output object"
            )
        return joined.source.lay(output)

    def deliver(self, results: Mapping[str, Any]) -> Mapping[str, Any]:
        """Write the results if the request has a path, and return them. If writing fails, remove all their files."""
        params = self.request.params
        several = isinstance(params.processor, tuple)
        delivered: dict[str, Any] = {}
        try:
            for name, output in results.items():
                delivered[name] = self.request.finish(output, name if several else None)
        except BaseException:
            if params.path is not None:
                for output in delivered.values():
                    remove_saved(output.path)
            raise
        return delivered

    def _opened(self) -> RasterView:
        """Return the opened input. Open it again after a pause, and raise if the file was changed meanwhile."""
        if not self.view.raster.closed or self.reopen is None:
            return self.view
        view = self.reopen()
        if not view.same_as(self.view):
            view.close()
            raise InputError(f"{view.raster.name} was changed while it waited for its turn; send it again")
        return view

    def _prompt(self, pixels: Pixels, index: int) -> Any:
        inputs = self.binding.inputs
        if inputs is None:
            raise TypeError("a model without an input mapper has no scenes")
        mapped = inputs.tile(self.view, reflected(pixels.array, self.grid.padding(index)))
        return inputs.render(mapped, inputs.tokens(mapped, self.request.params))


def cut(binding: Binding, view: RasterView, params: OutputParams) -> TileGrid | None:
    """Return the tile grid of an input, or None if the input fits one forward.

    Raises:
        OptionError: the overlap is too large, or a processor cannot join tiles of the requested size.
        InputError: the input does not fit one forward, and a processor cannot join tiles.

    """
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
    """Return the number of tile columns in a group. All tiles of a group are read before the next group.

    Decoded segments stay in memory from one row of tiles to the next, so fewer columns take less memory. A group is
    wide enough that each segment of the file overlaps at most two groups.
    """
    block_height, block_width = view.raster.block
    height, width = grid.sides
    stride = width - grid.overlap
    rows = -(-height // block_height) + 1
    a_column = view.raster.block_bytes * rows * max(1.0, stride / block_width)
    least = -(-(block_width + width) // stride)
    return max(1, min(len(grid.cols), max(least, int(_DECODED_AT_ONCE / a_column))))


def _not_joined(processor: str, view: RasterView, params: OutputParams) -> MMOutError:
    """Return the error for an input that must be cut into tiles, which the processor cannot join."""
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
