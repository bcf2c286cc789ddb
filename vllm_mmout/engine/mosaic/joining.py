"""Join the results of a mosaic's scenes into the raster of a map, window by window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import DecodeError
from vllm_mmout.geo import PlacedRaster, Window, block_limit, observed, warped
from vllm_mmout.outputs import RasterOutput
from vllm_mmout.outputs.differences import difference
from vllm_mmout.outputs.stored import StoredRaster
from vllm_mmout.processors.canvas import Canvas

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm_mmout.geo import MapGrid, PlacedArea
    from vllm_mmout.outputs.input_picture import InputPicture

_WINDOW_BYTES = 64 << 20
"""Largest size in bytes of the part of a map that is joined at a time. A single GeoTIFF block may be larger."""
_MOST_BLOCKS = 8
"""Largest number of GeoTIFF blocks of a map that are joined at a time."""
_MARGIN = 2
"""Number of map pixels added on each side of a scene's bounding box, since resampled pixels may lie outside the box."""


@dataclass(frozen=True, slots=True)
class SceneResult:
    """Raster file with the result of one scene of a mosaic."""

    name: str
    raster: StoredRaster
    path: Path
    picture: InputPicture | None = None
    """Function that reads a picture of the scene from its input, to draw the result on it. None if the input can be
    read only once."""

    @property
    def placed(self) -> PlacedRaster:
        """Name, georeference and size of the result, as a `PlacedRaster`."""
        return PlacedRaster(self.name, self.raster.georeference, (self.raster.height, self.raster.width))

    def nodata_share(self) -> float:
        """Return the share of the result's pixels without data, from 0 to 1. The whole raster is read."""
        missing = sum(0 if valid is None else int(valid.size - valid.sum()) for valid in self._valid_masks())
        return missing / (self.raster.height * self.raster.width)

    def is_empty(self) -> bool:
        """Return whether all pixels of the result lack data. The raster is read until a pixel with data is found."""
        return not any(valid is None or valid.any() for valid in self._valid_masks())

    def _valid_masks(self) -> Iterator[NDArray[np.bool_] | None]:
        """Yield a mask [height, width] of the pixels with data for each strip of rows.

        Yield None for a strip in which all pixels have data.
        """
        raster = self.raster
        block = block_limit(raster.count)
        for row in range(0, raster.height, block):
            pixels = raster.read(Window(row, 0, min(block, raster.height - row), raster.width))
            yield observed(pixels, None, raster.nodata)


def common_traits(results: Sequence[SceneResult]) -> RasterOutput:
    """Return a raster of one pixel with the metadata that all results share, such as bands, dtype and nodata.

    Its nodata is None if some result has none. Raises DecodeError if the results differ, and names two of them.
    """
    first = results[0]
    for other in results[1:]:
        traits = difference(first.raster, other.raster, but=("nodata",))
        if traits is None and None not in (first.raster.nodata, other.raster.nodata):
            traits = difference(first.raster, other.raster)
        if traits is not None:
            name, mine, others = traits
            raise DecodeError(
                f"the results of {first.name} and {other.name} differ in {name}, {mine} and {others}, so they cannot be"
                " one map; make maps of them apart"
            )
    described = first.raster.described
    described["georeference"] = described["metadata"] = None
    if any(result.raster.nodata is None for result in results):
        described["nodata"] = None
    pixel = np.zeros((first.raster.count, 1, 1), first.raster.dtype)
    return RasterOutput(pixel, **described)


@dataclass(frozen=True, slots=True)
class Joining:
    """Results of a mosaic's scenes, and the options for joining them to a map on one pixel grid."""

    results: Sequence[SceneResult]
    """Results of the scenes, in order of precedence. Each pixel of the map comes from the first result with data there,
    or from the most confident result if ``confident`` is True."""
    grid: MapGrid
    confident: bool = False
    """True if each pixel of the map comes from the most confident result: the result with the largest band value at
    that pixel."""
    finish: Callable[[RasterOutput], RasterOutput] | None = None
    """Function that turns joined pixels into map pixels, such as probabilities into classes. None to keep the joined
    pixels."""
    resampling: str = "nearest"
    """Resampling of floating-point values, "nearest" or "bilinear"."""
    area: PlacedArea | None = None
    """Area of interest, converted to pixel coordinates of the map, or None. Pixels outside of the area are masked."""
    check_aborted: Callable[[], None] = lambda: None
    """Function that raises if the caller has aborted the request. It is called repeatedly while the map is made."""

    def raster(self, folder: Path | None, metadata: Mapping[str, str]) -> StoredRaster:
        """Join the results of all scenes. Return the map as a raster stored in a temporary file in ``folder``."""
        like = common_traits(self.results)
        canvas = Canvas(folder, self.grid.size, like if self.finish is None else self.finish(like))
        try:
            boxes = [self.grid.box_of(result.placed) for result in self.results]
            for window in _windows(self.grid.size, like):
                self.check_aborted()
                here = [result for result, box in zip(self.results, boxes, strict=True) if _touches_window(box, window)]
                pixels, valid = self._joined_window(here, window, like)
                if self.area is not None:
                    inside = self.area.mask(window)
                    valid = inside if valid is None else valid & inside
                if valid is not None and not valid.any():
                    canvas.leave_out(*window)
                    continue
                joined = RasterOutput(pixels, **like.described)
                canvas.put(window.row, window.col, joined if self.finish is None else self.finish(joined), valid)
            own = {} if self.finish is None else self.finish(like).metadata
            return canvas.finish(self.grid.georeference, {**metadata, **own})
        except BaseException:
            canvas.discard()
            raise

    def _joined_window(
        self, results: Sequence[SceneResult], window: Window, like: RasterOutput
    ) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """Join the results in one window. Return pixels [bands, height, width], and the mask of the pixels with data.

        The mask is None if all pixels have data. ``like`` has the bands and dtype of the results.
        """
        pixels = np.zeros((like.count, window.height, window.width), like.dtype)
        filled = np.zeros((window.height, window.width), np.bool_)
        best = np.full(filled.shape, -np.inf) if self.confident else None
        smooth = like.dtype.kind == "f" and self.finish is None
        for result in results:
            resampling = self.resampling if smooth else "nearest"
            with warped(result.path, self.grid, resampling=resampling, nodata=result.raster.nodata) as raster:
                values, valid = raster.read(window)
            valid = np.ones(filled.shape, np.bool_) if valid is None else valid
            if best is None:
                used = valid & ~filled
            else:
                score = np.where(valid, values.max(axis=0), -np.inf)
                used = score > best
                np.maximum(best, score, out=best)
            np.copyto(pixels, values, where=used)
            filled |= valid
            if best is None and filled.all():
                break
        return pixels, None if filled.all() else filled


def _windows(size: tuple[int, int], like: RasterOutput) -> Iterator[Window]:
    """Yield windows of whole GeoTIFF blocks that cover a map of ``size`` with the bands and dtype of ``like``."""
    block = block_limit(like.count)
    block_bytes = block**2 * like.count * like.dtype.itemsize
    wide = block * max(1, min(_MOST_BLOCKS, _WINDOW_BYTES // block_bytes))
    height, width = size
    for row, col in product(range(0, height, block), range(0, width, wide)):
        yield Window(row, col, min(block, height - row), min(wide, width - col))


def _touches_window(box: tuple[float, float, float, float], window: Window) -> bool:
    """Return whether a scene's bounding box overlaps a window of the map, or is less than `_MARGIN` pixels away.

    ``box`` is (left, upper, right, lower) in pixels of the map.
    """
    left, upper, right, lower = box
    across = left - _MARGIN < window.col + window.width and right + _MARGIN > window.col
    return across and upper - _MARGIN < window.row + window.height and lower + _MARGIN > window.row
