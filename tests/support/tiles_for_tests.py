"""Cutting arrays into tiles and joining them again, without an engine."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from vllm_mmout.geo import TileGrid, reflected
from vllm_mmout.outputs import RasterOutput
from vllm_mmout.outputs.base import Source
from vllm_mmout.outputs.stored import StoredRaster
from vllm_mmout.params import OutputParams
from vllm_mmout.processors import Part, Parts


def pieces(array: np.ndarray, grid: TileGrid) -> list[np.ndarray]:
    """What of an array [..., height, width] each tile is fed."""
    return [
        reflected(array[..., window.rows, window.cols], grid.padding(index))
        for index, window in enumerate(map(grid.window, range(len(grid))))
    ]


def parts_of(
    outputs: Iterable[np.ndarray | None], grid: TileGrid, valid: np.ndarray | None = None, **known: object
) -> list[Part]:
    """Parts of arrays, one a tile; None for a tile without an observation."""
    return [
        Part(
            index,
            grid.window(index),
            None if output is None else RasterOutput(output, **known),
            None if valid is None else valid[grid.window(index).rows, grid.window(index).cols],
        )
        for index, output in enumerate(outputs)
    ]


def shuffled(parts: list[Part], seed: int) -> list[Part]:
    """The parts in another order."""
    return random.Random(seed).sample(parts, len(parts))  # noqa: S311 - only an order


def joined(
    parts: Iterable[Part],
    grid: TileGrid,
    blend: str = "cosine",
    finish: Callable[[RasterOutput], RasterOutput] | None = None,
    folder: Path | None = None,
    source: Source | None = None,
) -> StoredRaster:
    """Parts joined as a request with these options asks for it."""
    params = OutputParams(overlap=grid.overlap, blend=blend).of_part()
    source = source or Source(size=(grid.height, grid.width))
    return Parts(parts, grid=grid, source=source, folder=folder).mosaic(params, finish)


def pixels(parts: Iterable[Part], grid: TileGrid, blend: str = "cosine", **options: object) -> np.ndarray:
    """The pixels of `joined`."""
    raster = joined(parts, grid, blend, **options)
    try:
        return raster.array
    finally:
        raster.close()


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays are alike to the last bit, signs of zeros and NaN included."""
    one, other = (np.ascontiguousarray(array) for array in (one, other))
    return (one.dtype, one.shape) == (other.dtype, other.shape) and one.tobytes() == other.tobytes()
