"""`Scene`, a user request whose raster is too large for one forward pass and is cut into tiles."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vllm_mmout.engine.request.request import PartInput
from vllm_mmout.engine.scene.cutting import columns_at_once
from vllm_mmout.engine.scene.lane import StoppedError
from vllm_mmout.engine.scene.run import Run
from vllm_mmout.engine.trace import stage
from vllm_mmout.errors import DecodeError, InputError, MMOutError, raise_interrupt, type_and_message
from vllm_mmout.geo import TileGrid, reflected
from vllm_mmout.models.inputs.engine_input import as_tensor_of_tiles
from vllm_mmout.outputs.base import Source
from vllm_mmout.outputs.formats.geotiff import remove_saved
from vllm_mmout.outputs.partial_images import PartialImages
from vllm_mmout.processors.part import Part
from vllm_mmout.processors.parts import Parts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.engine.request.request import Request
    from vllm_mmout.models.inputs.model_inputs import ModelInputs
    from vllm_mmout.models.inputs.raster_view import RasterView, TilePixels
    from vllm_mmout.outputs.input_picture import InputPicture
    from vllm_mmout.outputs.partial_images import PreviewRequest

_MOST_TILES = 128
"""Largest number of tiles that a single engine request computes."""
_BLOCKS = 4
"""Number of blocks of tiles in memory at a time: one is read, one waits, one is computed, and one is joined."""


class Scene(Run):
    """User request whose raster is cut into tiles. It holds an open file until it is closed."""

    def __init__(
        self,
        request: Request,
        view: RasterView,
        grid: TileGrid,
        binding: Binding,
        *,
        folder: Path | None = None,
        reopen: Callable[[], RasterView] | None = None,
        picture: InputPicture | None = None,
    ) -> None:
        """Prepare a request whose raster is cut into tiles. No tile is read yet.

        Args:
            request: the user's request.
            view: the opened input.
            grid: the tiles of the input.
            binding: processors and settings of the engine.
            folder: folder for a result on disk until it is finished, or None for the system's temporary folder.
            reopen: function that opens the input again, or None if it can be read only once.
            picture: function that reads the picture of the input, for figures of the result, or None.

        """
        height, width = grid.fed
        part_params = request.params.of_part(
            window=None, bbox=None, bbox_crs=None, aoi=None, aoi_crs=None, path=None, partial_images=0
        )
        super().__init__(
            request,
            binding.choice.pick(request.params.processor),
            part_params,
            total=len(grid),
            nbytes=height * width * len(view.bands) * view.itemsize,
            pace=binding.paces.of((part_params.of_part(location=None, dates=None), grid.fed, view.raster.dtype)),
        )
        self.view = view
        self.grid = grid
        self.binding = binding
        self.folder = folder
        self.reopen = reopen
        self.picture = picture
        self.pixels = grid.height * grid.width
        self.can_wait = reopen is not None

    @property
    def assumed(self) -> tuple[str, ...]:
        """Sentences about the defaults that were assumed for the input."""
        return self.view.assumed

    @property
    def source(self) -> Source:
        """Georeference, metadata and other properties of the input, which are passed on to its outputs."""
        return Source(
            size=self.view.size,
            georeference=self.view.georeference,
            area=self.view.area,
            metadata=self.view.raster.metadata,
            input_picture=self.picture,
            assumed=self.view.assumed,
        )

    def check_tiles(self, most: int) -> None:
        """Close the input and raise InputError if the scene has more than ``most`` tiles."""
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
        """Return a source of preview images of the unfinished result, or None if no previews are requested.

        ``notify`` is called for each image. ``watch`` is an object by which the client requests previews, or None.
        """
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
        """Return the number of tiles of the scene, and the size in bytes of one tile."""
        return self.total, self.nbytes

    @property
    def block_size(self) -> int:
        """Largest number of tiles that an engine request may compute.

        A block has at most the pixels that vLLM measured memory for, and several blocks must fit the budget. A model
        that is written for vLLM, or that takes several steps, gets its tiles one by one.
        """
        if not self._inputs.takes_blocks:
            return 1
        height, width = self.grid.sides
        in_forward = self.binding.max_num_seqs * max(1, self.view.mapper.max_size**2 // (height * width))
        return min(in_forward, _MOST_TILES, max(1, self._budget.room(self.nbytes) // (_BLOCKS * self.binding.engines)))

    def parts(self) -> Generator[PartInput, None, None]:
        """Read and yield blocks of tiles, ordered so that each strip or tile of the file is decoded at most twice."""
        count, sent, unread = self.block_size, False, len(self.grid)
        with self._opened() as view:
            empty = self._allocator(view)
            for group in self.grid.groups(columns_at_once(self.grid, view)):
                windows = [self.grid.window(index) for index in group]
                with closing(view.tiles(windows, size=self.grid.fed, count=count, empty=empty)) as blocks:
                    for start in range(0, len(group), count):
                        indices = group[start : start + count]
                        if not self.reserve(len(indices)):
                            return
                        with stage("read", indices[0], tiles=len(indices)):
                            pixels, masks = self._read(blocks, group)
                        unread -= len(indices)
                        # The model alone knows the dtype and bands of its result, so at least one tile is sent.
                        places = [place for place, valid in enumerate(masks) if valid is None or valid.any()]
                        places = places or ([] if sent or unread else [len(indices) - 1])
                        sent = sent or bool(places)
                        tiles = zip(indices, windows[start : start + count], masks, strict=True)
                        parts = [Part(index, window, None, valid) for index, window, valid in tiles]
                        yield from self._inputs_of(view, pixels, parts, places)

    def _allocator(self, view: RasterView) -> Callable[..., NDArray[Any]]:
        """Return the function that allocates arrays for tiles, in shared memory if the engines can read it."""
        memory = self.binding.memory
        if memory is None:
            return np.empty
        mapper = self._inputs.rasters
        keeps_layout = mapper is not None and mapper.keeps_layout(view) and view.raster.interleaved
        if keeps_layout and memory.bands_last and memory.is_mapped_by_all(self.binding.engines):
            return memory.empty_bands_last
        return memory.empty

    def _inputs_of(
        self, view: RasterView, pixels: NDArray[Any], parts: Sequence[Part], places: Sequence[int]
    ) -> Iterator[PartInput]:
        """Yield `PartInput` objects for a block of tiles. The engine computes only the tiles at indices ``places``."""
        if len(places) < len(parts):
            yield PartInput([part for place, part in enumerate(parts) if place not in places])
        if places:
            shown = [parts[place] for place in places]
            with stage("map", shown[0].index, tiles=len(shown)):
                mapped = list(self._mapped(view, pixels if len(shown) == len(parts) else pixels[places], shown))
            yield from mapped

    def rendered(self, part: PartInput, engine: int) -> Any:
        """Return the input for a block of tiles or a single tile, in the form that vLLM takes.

        ``engine`` is the index of the engine that gets it.
        """
        if part.tensors is None:
            return part.prompt
        return self._inputs.render_block(part.tensors, len(part), self.binding.memory, engine)

    def _read(self, blocks: Iterator[TilePixels], group: Sequence[int]) -> TilePixels:
        try:
            return next(blocks)
        except InputError as error:
            if error.tile is None:
                raise
            raise InputError(f"{self._name_of(group[error.tile])}: {error}") from error

    def _mapped(self, view: RasterView, pixels: NDArray[Any], parts: Sequence[Part]) -> Iterator[PartInput]:
        """Convert tiles to the model's tensors. Tiles whose tensors differ in shape or dtype go into separate blocks.

        ``pixels`` is [tiles, bands, height, width].
        """
        height, width = self.grid.fed
        for tile, part in zip(pixels, parts, strict=True):
            if (window := part.window) is not None and (window.height, window.width) != (height, width):
                padding = height - window.height, width - window.width
                tile[...] = reflected(tile[:, : window.height, : window.width], padding)
        inputs, params, memory = self._inputs, self.request.params, self.binding.memory
        if inputs.takes_blocks:
            done = 0
            for tensors in inputs.tiles(view, pixels):
                count = len(next(iter(tensors.values())))
                held = {name: as_tensor_of_tiles(value) for name, value in tensors.items()}
                held = held if memory is None else memory.moved(held)
                yield PartInput(parts[done : done + count], None, held, is_block=True, name_of=self._name_of)
                done += count
            return
        for part, tile in zip(parts, pixels, strict=True):
            mapped = inputs.tile(view, tile)
            yield PartInput([part], inputs.render(mapped, inputs.tokens(mapped, params)), name_of=self._name_of)

    def _name_of(self, index: int) -> str:
        """Return the name of tile ``index`` for error messages, with the tile's window in the input."""
        return f"tile {index + 1} of {len(self.grid)} ({self.view.in_input(self.grid.window(index))})"

    @property
    def _inputs(self) -> ModelInputs:
        if self.binding.inputs is None:
            raise TypeError("a model without an input mapper has no scenes")
        return self.binding.inputs

    def join(self, processor_name: str, parts: Iterator[Part]) -> Any:
        """Join the decoded tiles ``parts`` into a processor's output for the whole scene. Called in a thread."""
        processor = self.binding.processors[processor_name]
        first = self.binding.choice.pick(self.request.params.processor)[0]
        joined = Parts(
            parts,
            grid=self.grid,
            source=self.source.made_by(self.binding.model, processor_name),
            folder=self.folder,
            growing=self.growing if processor_name == first else None,
        )
        try:
            output = processor.assemble(joined, self.part_params)
        except (MMOutError, StoppedError):
            raise
        except BaseException as error:  # SystemExit too: it must not end the caller's process
            raise_interrupt(error)
            raise DecodeError(
                f"{type(processor).__name__} ({processor_name}) failed to join tiles: {type_and_message(error)}"
            ) from error
        if output is None:
            raise DecodeError(
                f"{type(processor).__name__} ({processor_name}) returned None; assemble() must return an output object"
            )
        return joined.source.lay(output)

    def deliver(self, results: Mapping[str, Any]) -> Mapping[str, Any]:
        """Save each result if the request has a path. If a save fails, remove the saved files. Return the results."""
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
        """Return the opened input. Open it again after a pause, and raise if the file has changed meanwhile."""
        if not self.view.raster.closed or self.reopen is None:
            return self.view
        view = self.reopen()
        if not view.same_as(self.view):
            view.close()
            raise InputError(f"{view.raster.name} was changed while it waited for its turn; send it again")
        return view
