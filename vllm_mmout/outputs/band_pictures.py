"""Draw bands of a raster as a picture in colours or grey. Results are drawn over this picture."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.geo import Raster, Window, meanings, possible_sensors
from vllm_mmout.outputs.rendering import PREVIEW, preview, render

if TYPE_CHECKING:
    from PIL.Image import Image

    from vllm_mmout.geo import OpenRaster

_STRETCH_PERCENTILES: Final = (2, 98)
"""Two percentiles of the pixel values. A picture of an input shows the first as black, and the second as white."""
_WORDS: Final = ("red", "green", "blue")
_OTHER_BAND_WORDS: Final = {"edge", "coastal"}
"""Words in band names that rule out a plain colour: "red edge 1" is not red, and "coastal blue" is not blue."""
_SPLIT: Final = re.compile(r"[\W_]+")


class DrawnBands:
    """Bands of an open raster that are drawn as a picture. Pixels are read as float32, and invalid pixels are NaN.

    Args:
        raster: the open raster.
        bands: numbers (from 1) of the bands: three for red, green and blue, or one for grey.
        window: part of the raster that is drawn, by default all of it.
        nodata: value of pixels without data; by default the value that the raster states.

    """

    def __init__(
        self, raster: OpenRaster, bands: Sequence[int], window: Window | None = None, nodata: float | None = None
    ) -> None:
        self._raster = raster
        self._bands = bands
        self._window = window or Window(0, 0, *raster.size)
        self._nodata = None if raster.unpacked else nodata
        self.size = (self._window.height, self._window.width)
        self.count = len(bands)
        self.dtype: np.dtype[Any] = np.dtype(np.float32)

    def windows(self, windows: Sequence[Window]) -> Iterator[Raster]:
        """Yield the pixels of each window. Window positions are relative to the drawn part of the raster."""
        row, col = self._window.row, self._window.col
        moved = [Window(each.row + row, each.col + col, each.height, each.width) for each in windows]
        for raster in self._raster.windows(moved, self._bands):
            array, valid = raster.array.astype(np.float32), raster.valid(self._nodata)
            if valid is not None:
                array[:, ~valid] = np.nan
            yield Raster(array)

    def picture(self) -> Image:
        """Return a picture of the bands, reduced to at most `PREVIEW` pixels on the longer side.

        Invalid pixels are transparent. Pixels of uint8 keep their values, and others are stretched.
        """
        if max(self.size) > PREVIEW:
            array, valid = preview(self, None, classes=True)
        else:
            (raster,) = self.windows([Window(0, 0, *self.size)])
            array, valid = raster.array, raster.valid()
        if self._raster.dtype == np.uint8:
            array = np.nan_to_num(array).astype(np.uint8)
        return stretched_picture(array, valid)


def stretched_picture(shown: NDArray[Any], valid: NDArray[np.bool_] | None) -> Image:
    """Draw the bands ``shown`` [1 or 3, height, width] in grey or colours. uint8 values are drawn unchanged.

    Values of another dtype are stretched from their 2nd to their 98th percentile. Pixels outside ``valid`` are
    transparent.
    """
    if shown.dtype != np.uint8 and (valid is None or valid.any()):
        # Without clipping, clouds and glints would leave all else in one grey.
        low, high = np.percentile(shown if valid is None else shown[:, valid], _STRETCH_PERCENTILES)
        shown = shown.clip(low, high)
    return render(shown, valid, None)


def bands_to_draw(names: Sequence[str], *, coloured: bool) -> tuple[int, ...]:
    """Return the numbers (from 1) of the bands to draw, chosen by band names. An unnamed band has the name "".

    If bands named red, green and blue exist, return these. Else return bands 1, 2 and 3 of a colour picture or of three
    bands. Of more bands return 3, 2 and 1, because most sensors store blue first. Of fewer bands return band 1.
    """
    bands = [place + 1 for colour in range(3) if (place := _band_of_colour(names, colour)) is not None]
    if len(bands) == 3:
        return tuple(bands)
    if coloured or len(names) == 3:
        return 1, 2, 3
    return (3, 2, 1) if len(names) > 3 else (1,)


def _band_of_colour(names: Sequence[str], colour: int) -> int | None:
    """Return the index of the first band with the colour 0 (red), 1 (green) or 2 (blue) in its name, or None."""
    sensor = possible_sensors(names)[0]
    band_meanings = meanings([(name.strip(),) for name in names], [sensor] * len(names))
    by_meaning = [meaning == {_WORDS[colour]} for meaning in band_meanings]
    words = [set(_SPLIT.split(name.casefold())) for name in names]
    by_word = [_WORDS[colour] in band_words and not band_words & _OTHER_BAND_WORDS for band_words in words]
    return next((matches.index(True) for matches in (by_meaning, by_word) if True in matches), None)
