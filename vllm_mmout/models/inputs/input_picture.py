"""Render an input as an RGB picture. Results are drawn on top of this picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.geo import meanings, possible_sensors
from vllm_mmout.models.inputs.mapped_input import MappedInput
from vllm_mmout.outputs.band_pictures import DrawnBands, stretched_picture

if TYPE_CHECKING:
    from PIL.Image import Image

    from vllm_mmout.models.inputs.raster_view import RasterView

_COLOURS: Final = tuple(frozenset({colour}) for colour in ("red", "green", "blue"))


def picture_of_planes(array: NDArray[Any], valid: NDArray[np.bool_] | None, bands: Sequence[str]) -> Image:
    """Render ``array`` [bands, height, width] in RGB: its red, green and blue bands, or its first band in grey."""
    return stretched_picture(array[_shown_planes(bands)], valid).convert("RGB")


def read_picture(open_input: Callable[[], MappedInput | RasterView]) -> Image | None:
    """Open an input and return its picture, reduced to at most `PREVIEW` pixels on the longer side.

    Invalid pixels are transparent. Return None for an input that is given as tensors.
    """
    opened = open_input()
    if isinstance(opened, MappedInput):
        return None if opened.source.picture is None else opened.source.picture()
    with opened as view:
        dates = view.mapper.num_frames or 1
        bands = [view.bands[plane * dates] for plane in _shown_planes(view.mapper.bands)]  # of the first date
        return DrawnBands(view.raster, bands, view.window, view.params.nodata).picture()


def _shown_planes(bands: Sequence[str]) -> list[int]:
    """Return the indices of the bands to draw: the red, green and blue bands.

    If a colour is missing, return all bands if there are three, else the first band.
    """
    by_name = meanings([(name,) for name in bands], [possible_sensors(bands)[0]] * len(bands))
    colours = [by_name.index(colour) for colour in _COLOURS if colour in by_name]
    return colours if len(colours) == 3 else [0, 1, 2] if len(bands) == 3 else [0]
