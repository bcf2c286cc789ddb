"""Decide whether an input is cut into tiles, and how the tiles are ordered for reading."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vllm_mmout.errors import InputError, MMOutError, OptionError
from vllm_mmout.geo import READ_AHEAD_BYTES, TileGrid

if TYPE_CHECKING:
    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.models.inputs.raster_view import PlanesMapper, RasterView
    from vllm_mmout.params import OutputParams

_OPEN_BYTES = max(48 << 20, READ_AHEAD_BYTES)
"""Memory limit in bytes for partly read tiles. The limit determines how many columns of tiles are read together.

Reading more columns together takes less processor time, because fewer segments of the file are decoded twice. Large
segments may need more memory than this limit.
"""


def cut(binding: Binding, mapper: PlanesMapper, size: tuple[int, int], params: OutputParams) -> TileGrid | None:
    """Cut an input of ``size`` (height, width) into a grid of tiles. Return None if the input fits one forward pass.

    Raises:
        OptionError: the overlap is too large, a processor cannot join tiles of the requested size, or the patches of a
            processor do not divide the tiles.
        InputError: the input does not fit one forward, and a processor cannot join tiles.

    """
    tile, tile_width = mapper.tile_sides(params.tile)
    if 2 * params.overlap > min(tile, tile_width):
        raise OptionError(
            f"overlap must be at most half a tile, got {params.overlap} for tiles of {min(tile, tile_width)}; choose a"
            f" smaller overlap or a larger tile, up to {mapper.max_size}",
            param="overlap",
        )
    processor_names = binding.choice.pick(params.processor)
    patch = output_stride(binding, params)
    if mapper.fits(size) and (params.tile is None or max(size) <= params.tile) and patch == 1:
        return None
    for name in processor_names:
        if not binding.processors[name].joins_parts:
            raise _not_joined(name, mapper, size, params)
    (tile, tile_width), edge = mapper.tiled(size, params)
    if patch > 1:
        tile, tile_width = _sides_of_patches(mapper, size, params, patch)
        if size[0] < tile or size[1] < tile_width:
            edge = "pad"
    return TileGrid(*size, tile, params.overlap, edge, tile_width, patch)


def output_stride(binding: Binding, params: OutputParams) -> int:
    """Return the side of a result pixel in input pixels: 1, or more if each result pixel covers a patch."""
    return math.lcm(*(binding.processors[name].output_stride for name in binding.choice.pick(params.processor)))


def _sides_of_patches(mapper: PlanesMapper, size: tuple[int, int], params: OutputParams, patch: int) -> tuple[int, int]:
    """Return the sides (height, width) of the tiles in pixels, if each result pixel covers a patch of the input.

    A patch has ``patch`` x ``patch`` pixels. The tiles are square if the model's tiles are, since the patches' rows are
    found by their number. An input that is smaller than the model's tiles gets a tile of its own size, rounded up to
    whole patches, if the model takes it.
    """
    sides = mapper.tile_sides(params.tile)
    least = -(-max(*size, 2 * params.overlap) // patch) * patch
    fits = params.tile is None and least < min(sides) and mapper.fits((least, least))
    return (least, least) if fits else sides


def columns_at_once(grid: TileGrid, view: RasterView) -> int:
    """Return how many neighbouring columns of tiles to read together.

    A segment of the file is decoded into all rows of tiles that it overlaps, so fewer columns take less memory. There
    are enough columns that each segment overlaps at most two such groups of columns.
    """
    segment_height, segment_width = view.raster.block
    height, width = grid.sides
    stride = width - grid.overlap
    rows = height * (-(-(segment_height - 1) // height) + 1)
    a_column = rows * stride * len(view.bands) * view.itemsize
    least = -(-(segment_width + width) // stride)
    return max(1, min(len(grid.cols), max(least, _OPEN_BYTES // a_column)))


def _not_joined(processor: str, mapper: PlanesMapper, size: tuple[int, int], params: OutputParams) -> MMOutError:
    """Return the error for an input that must be cut into tiles although its processor cannot join tiles."""
    if mapper.fits(size):
        return OptionError(
            f"output processor {processor!r} cannot join tiles; leave tile={params.tile} out", param="tile"
        )
    height, width = size
    takes = f"model {mapper.model!r} takes {mapper.sizes} in one forward"
    if mapper.too_small(size):
        remedy = "scale the input up"
    elif max(size) > mapper.max_size:
        remedy = "scale it down, or cut out a part with window=..."
    else:
        remedy = "scale it, or cut out a part with window=..."
    return InputError(
        f"the input is {height} x {width} pixels, {takes}, and output processor {processor!r} cannot join tiles;"
        f" {remedy}, or choose another processor"
    )
