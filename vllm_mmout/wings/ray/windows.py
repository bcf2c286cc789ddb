"""Cut a scene into windows, and join the results of the windows. The joined raster equals the uncut scene's result.

Each window owns a part of the result, which no other window has. A window covers all tiles of the scene's grid that
touch its own part, so each pixel is made from the same tiles as if the scene were not cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo import Window, block_limit, open_raster
from vllm_mmout.outputs import RasterOutput
from vllm_mmout.processors.canvas import Canvas

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from vllm_mmout.geo import OpenRaster, PlacedArea, TileGrid
    from vllm_mmout.outputs.stored import StoredRaster


@dataclass(frozen=True, slots=True)
class ScenePart:
    """Window of a scene on which the model runs. Only the result of the window's part ``own`` is used."""

    window: Window
    """Window on which the model runs, in pixels of the scene's file."""
    own: Window
    """Part of ``window`` whose result is kept when windows are joined, in pixels of the scene. The kept parts do not
    overlap.
    """


def parts_of(grid: TileGrid, origin: tuple[int, int], side: int) -> list[ScenePart]:
    """Cut a scene into windows of about ``side`` pixels square. ``origin`` is the scene's (row, column) in its file."""
    rows = list(_windows_along(grid.rows, grid.height, grid.sides[0], side))
    cols = list(_windows_along(grid.cols, grid.width, grid.sides[1], side))
    return [
        ScenePart(
            Window(origin[0] + top, origin[1] + left, bottom - top, right - left),
            Window(own_top, own_left, own_bottom - own_top, own_right - own_left),
        )
        for (top, bottom, own_top, own_bottom), (left, right, own_left, own_right) in product(rows, cols)
    ]


def _windows_along(starts: Sequence[int], size: int, tile: int, side: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (start, end, kept start, kept end) for each window along one axis of the scene, in pixels of the scene.

    The windows overlap. Only the kept part of each window goes into the joined result, and the kept parts do not
    overlap.
    """
    stride = starts[1] - starts[0] if len(starts) > 1 else tile
    tiles = max(1, side // stride)
    for first in range(0, len(starts), tiles):
        last = min(first + tiles, len(starts))
        begin = next(start for start in starts if start + tile > starts[first])
        end, own_end = (size, size) if last == len(starts) else (starts[last - 1] + tile, starts[last])
        yield begin, end, starts[first], own_end


def facts_of(output: Any) -> dict[str, Any]:
    """Return the metadata that the GeoTIFF of a window's result cannot store, such as units and class names.

    The values can be encoded as JSON. Raise OptionError if the result is not a raster.
    """
    if not isinstance(output, RasterOutput):
        raise OptionError(
            f"a {type(output).__name__} cannot be joined from windows; leave --ray-split out, or choose a processor"
            " that gives a raster"
        )
    palette = None if output.palette is None else output.palette.tolist()
    return {
        "units": output.units,
        "scales": output.scales,
        "nearest": output.nearest,
        "class_names": output.class_names,
        "palette": palette,
    }


def described_by(raster: OpenRaster, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments to recreate a `RasterOutput` from a window's GeoTIFF.

    Position and metadata are left out. ``facts`` is the return value of `facts_of`.
    """
    palette = None if facts["palette"] is None else np.array(facts["palette"], np.uint8)
    return {**facts, "nodata": raster.nodata, "band_names": raster.descriptions, "palette": palette}


def joined(
    parts: Sequence[tuple[str | Path, ScenePart]],
    size: tuple[int, int],
    facts: Mapping[str, Any],
    folder: Path,
    area: PlacedArea | None = None,
) -> StoredRaster:
    """Join the GeoTIFFs of a scene's windows into one raster.

    Args:
        parts: path or address of each GeoTIFF, and its window. The first window is the upper left one. A result may
            have more or fewer pixels than its window.
        size: height and width of the scene, in pixels of the input.
        facts: further metadata of the result, from `facts_of`.
        folder: folder in which the result is written.
        area: area of interest on the scene's pixels, to which the result is masked, or None.

    Raises:
        InputError: the results differ in nodata, or have unexpected sizes.
    """
    with open_raster(parts[0][0]) as first:
        scale = Fraction(first.size[0], parts[0][1].window.height), Fraction(first.size[1], parts[0][1].window.width)
        whole = Window(*_scaled((0, 0), scale), *_scaled(size, scale))
        described = described_by(first, facts) | {"nodata": _nodata(parts)}
        like = RasterOutput(np.zeros((first.count, 1, 1), first.dtype), **described)
        result_size = (whole.height, whole.width)
        masked = None if area is None else partial(area.resized_mask, size=result_size)
        canvas = Canvas(folder, result_size, like)
        try:
            for part in parts:
                _put(canvas, like, scale, parts[0][1].window, part, masked=masked)
            return canvas.finish(first.georeference, first.metadata)
        except BaseException:
            canvas.discard()
            raise


def _put(
    canvas: Canvas,
    like: RasterOutput,
    scale: tuple[Fraction, Fraction],
    origin: Window,
    source: tuple[str | Path, ScenePart],
    *,
    masked: Callable[[Window], NDArray[np.bool_]] | None,
) -> None:
    """Copy the kept part of a window's result to ``canvas``, the raster of the whole scene.

    ``source`` is the path or address of the window's GeoTIFF, and its `ScenePart`, whose ``own`` is the kept part.
    ``origin`` is the scene's first window. ``scale`` is the number of result pixels per input pixel.
    """
    address, part = source
    own = Window(*_scaled((part.own.row, part.own.col), scale), *_scaled((part.own.height, part.own.width), scale))
    above, left = _scaled((part.window.row - origin.row, part.window.col - origin.col), scale)
    rows, end = block_limit(like.count), own.row + own.height
    strips = [Window(row - above, own.col - left, min(rows, end - row), own.width) for row in range(own.row, end, rows)]
    with open_raster(address) as raster:
        if raster.size != _scaled((part.window.height, part.window.width), scale):
            raise InputError(f"{address} has {raster.size} pixels, which are not {scale} of {part.window}")
        for strip, pixels in zip(strips, raster.windows(strips), strict=True):
            place = Window(strip.row + above, own.col, strip.height, strip.width)
            valid = None if masked is None else masked(place)
            canvas.put(place.row, place.col, RasterOutput(pixels.array, **like.described), valid)


def _nodata(parts: Sequence[tuple[str | Path, ScenePart]]) -> float | None:
    """Return the nodata value of the windows' GeoTIFFs. Return None if no GeoTIFF has a nodata value.

    Raise InputError if the GeoTIFFs have different nodata values.
    """
    values: dict[str, float] = {}
    for address, _ in parts:
        with open_raster(address) as raster:
            if raster.nodata is not None:
                values[str(raster.nodata)] = raster.nodata
    if len(values) > 1:
        raise InputError(f"the parts have different values for nodata ({', '.join(values)}), and cannot be joined")
    return next(iter(values.values()), None)


def _scaled(lengths: tuple[int, int], scale: tuple[Fraction, Fraction]) -> tuple[int, int]:
    """Convert lengths in input pixels to result pixels. Raise InputError if the lengths are not whole pixels."""
    rows, cols = lengths[0] * scale[0], lengths[1] * scale[1]
    if rows.denominator > 1 or cols.denominator > 1:
        raise InputError(
            f"a result that has {scale[0]} x {scale[1]} of its input's pixels cannot be cut at {lengths}; leave"
            " --ray-split out"
        )
    return int(rows), int(cols)
