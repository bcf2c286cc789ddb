"""A scene that is cut into windows for several nodes, and joined: the same pixels as of one run.

A window has all tiles of the scene's own grid that touch its own part of the result, and no part of any other. So each
pixel is made of the same tiles as in one run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo import Window, open_raster
from vllm_mmout.outputs import RasterOutput
from vllm_mmout.processors.canvas import Canvas

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_mmout.geo import TileGrid
    from vllm_mmout.outputs.stored import StoredRaster

_ROWS = 512
"""Rows of a part that are read at once."""


@dataclass(frozen=True, slots=True)
class ScenePart:
    """A part of a scene."""

    window: Window
    """What is run."""
    own: Window
    """What of it goes into the joined result."""


def parts_of(grid: TileGrid, origin: tuple[int, int], side: int) -> list[ScenePart]:
    """Cut a scene into parts of about ``side`` pixels square; ``origin`` is where it begins in its file."""
    rows = list(_along(grid.rows, grid.height, grid.sides[0], side))
    cols = list(_along(grid.cols, grid.width, grid.sides[1], side))
    return [
        ScenePart(
            Window(origin[0] + top, origin[1] + left, bottom - top, right - left),
            Window(own_top, own_left, own_bottom - own_top, own_right - own_left),
        )
        for (top, bottom, own_top, own_bottom), (left, right, own_left, own_right) in product(rows, cols)
    ]


def _along(starts: Sequence[int], size: int, tile: int, side: int) -> Iterator[tuple[int, int, int, int]]:
    """The parts along one axis: from where to where each is run, and is the result's own."""
    stride = starts[1] - starts[0] if len(starts) > 1 else tile
    tiles = max(1, side // stride)
    for first in range(0, len(starts), tiles):
        last = min(first + tiles, len(starts))
        begin = next(start for start in starts if start + tile > starts[first])
        end, own_end = (size, size) if last == len(starts) else (starts[last - 1] + tile, starts[last])
        yield begin, end, starts[first], own_end


def facts_of(output: Any) -> dict[str, Any]:
    """What is known of a part's raster and no reader of its GeoTIFF tells: units, class names and palette, as JSON."""
    if not isinstance(output, RasterOutput):
        raise OptionError(
            f"a {type(output).__name__} cannot be joined of windows; leave --ray-split out, or choose a processor that"
            " gives a raster"
        )
    palette = None if output.palette is None else output.palette.tolist()
    return {"units": output.units, "class_names": output.class_names, "palette": palette}


def joined(
    parts: Sequence[tuple[str | Path, ScenePart]], size: tuple[int, int], facts: Mapping[str, Any], folder: Path
) -> StoredRaster:
    """Join the GeoTIFFs of parts, the first of which is the upper left, into one.

    Args:
        parts: path or address, and place, of each; their results may have more or fewer pixels than the input.
        size: height and width of the scene, in pixels of the input.
        facts: what is known of the rasters.
        folder: where the result is made.

    """
    with open_raster(parts[0][0]) as first:
        scale = Fraction(first.size[0], parts[0][1].window.height), Fraction(first.size[1], parts[0][1].window.width)
        whole = Window(*_scaled((0, 0), scale), *_scaled(size, scale))
        like = RasterOutput(
            np.zeros((first.count, 1, 1), first.dtype),
            nodata=_nodata(parts),
            band_names=first.descriptions,
            units=facts["units"],
            class_names=facts["class_names"],
            palette=None if facts["palette"] is None else np.array(facts["palette"], np.uint8),
        )
        canvas = Canvas(folder, (whole.height, whole.width), like)
        try:
            for one in parts:
                _put(canvas, like, scale, parts[0][1].window, one)
            return canvas.finish(first.georeference, first.metadata)
        except BaseException:
            canvas.discard()
            raise


def _put(
    canvas: Canvas,
    like: RasterOutput,
    scale: tuple[Fraction, Fraction],
    origin: Window,
    one: tuple[str | Path, ScenePart],
) -> None:
    """Put a part's own pixels on the canvas."""
    place, part = one
    own = Window(*_scaled((part.own.row, part.own.col), scale), *_scaled((part.own.height, part.own.width), scale))
    above, left = _scaled((part.window.row - origin.row, part.window.col - origin.col), scale)
    strips = [
        Window(row - above, own.col - left, min(_ROWS, own.row + own.height - row), own.width)
        for row in range(own.row, own.row + own.height, _ROWS)
    ]
    with open_raster(place) as raster:
        if raster.size != _scaled((part.window.height, part.window.width), scale):
            raise InputError(f"{place} has {raster.size} pixels, which are not {scale} of {part.window}")
        for strip, pixels in zip(strips, raster.windows(strips), strict=True):
            canvas.put(strip.row + above, own.col, RasterOutput(pixels.array, **like.described))


def _nodata(parts: Sequence[tuple[str | Path, ScenePart]]) -> float | None:
    """What means nothing in all parts: one without any such pixel may have no value for it."""
    found: dict[str, float] = {}
    for place, _ in parts:
        with open_raster(place) as raster:
            if raster.nodata is not None:
                found[str(raster.nodata)] = raster.nodata
    if len(found) > 1:
        raise InputError(f"the parts have different values for nodata ({', '.join(found)}), and cannot be joined")
    return next(iter(found.values()), None)


def _scaled(lengths: tuple[int, int], scale: tuple[Fraction, Fraction]) -> tuple[int, int]:
    """Rows and columns of the input as those of the result."""
    rows, cols = lengths[0] * scale[0], lengths[1] * scale[1]
    if rows.denominator > 1 or cols.denominator > 1:
        raise InputError(
            f"a result that has {scale[0]} x {scale[1]} of its input's pixels cannot be cut at {lengths}; leave"
            " --ray-split out"
        )
    return int(rows), int(cols)
