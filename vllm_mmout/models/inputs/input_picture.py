"""RGB pictures of inputs, over which results are drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.geo import Raster, Window, meanings, possible_sensors
from vllm_mmout.models.inputs.mapped_input import MappedInput
from vllm_mmout.outputs.rendering import PREVIEW, preview, render

if TYPE_CHECKING:
    from PIL.Image import Image

    from vllm_mmout.models.inputs.raster_view import RasterView

_STRETCH_PERCENTILES: Final = (2, 98)
"""Percentiles of the pixel values that are drawn black and white in the picture of an input."""
_COLOURS: Final = tuple(frozenset({colour}) for colour in ("red", "green", "blue"))


def picture_of_planes(array: NDArray[Any], valid: NDArray[np.bool_] | None, bands: Sequence[str]) -> Image:
    """Render ``array`` [bands, height, width] in RGB: its red, green and blue bands, or its first band in grey."""
    return _rendered(array[_shown_planes(bands)], valid).convert("RGB")


def read_picture(open_input: Callable[[], MappedInput | RasterView]) -> Image | None:
    """Open an input and return its picture, reduced to at most `PREVIEW` pixels on the longer side.

    Invalid pixels are transparent. Return None for an input that is given as tensors.
    """
    opened = open_input()
    if isinstance(opened, MappedInput):
        return None if opened.source.picture is None else opened.source.picture()
    with opened as view:
        source = _ColourBands(view)
        if max(view.size) > PREVIEW:
            array, valid = preview(source, None, classes=True)
        else:
            (raster,) = source.windows([Window(0, 0, *view.size)])
            array, valid = raster.array, raster.valid()
        if view.raster.dtype == np.uint8:
            array = np.nan_to_num(array).astype(np.uint8)
    return _rendered(array, valid)


class _ColourBands:
    """Bands of an open input that are drawn in its picture, as float32 with NaN at pixels that are not valid."""

    def __init__(self, view: RasterView) -> None:
        self._view = view
        dates = view.mapper.num_frames or 1
        self._bands = [view.bands[plane * dates] for plane in _shown_planes(view.mapper.bands)]  # of the first date
        self.size = view.size
        self.count = len(self._bands)
        self.dtype: np.dtype[Any] = np.dtype(np.float32)

    def windows(self, windows: Sequence[Window]) -> Iterator[Raster]:
        view = self._view
        nodata = None if view.raster.unpacked else view.params.nodata
        for raster in view.raster.windows([view.in_input(window) for window in windows], self._bands):
            array, valid = raster.array.astype(np.float32), raster.valid(nodata)
            if valid is not None:
                array[:, ~valid] = np.nan
            yield Raster(array)


def _shown_planes(bands: Sequence[str]) -> list[int]:
    """Return the indices of the bands to draw: red, green and blue by name, else all three, else the first band."""
    by_name = meanings([(name,) for name in bands], [possible_sensors(bands)[0]] * len(bands))
    colours = [by_name.index(colour) for colour in _COLOURS if colour in by_name]
    return colours if len(colours) == 3 else [0, 1, 2] if len(bands) == 3 else [0]


def _rendered(shown: NDArray[Any], valid: NDArray[np.bool_] | None) -> Image:
    if shown.dtype != np.uint8 and (valid is None or valid.any()):
        # Without clipping, clouds and glints would leave all else in one grey.
        low, high = np.percentile(shown if valid is None else shown[:, valid], _STRETCH_PERCENTILES)
        shown = shown.clip(low, high)
    return render(shown, valid, None)
