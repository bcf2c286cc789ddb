"""Turn rasters upright and apply their palettes, so that they look as in an image viewer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.geo.raster.raster import Raster, Window
from vllm_mmout.geo.raster.windowed import Arrays, OpenRaster, OpenView

EXIF_ORIENTATION = "EXIF_Orientation"
"""Name of the metadata item that holds the EXIF orientation in GDAL."""
ORIENTATION_TAG = 0x0112
"""Number of the orientation tag in EXIF and in TIFF."""
_TURNS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "2": lambda array: array[..., ::-1],
    "3": lambda array: array[..., ::-1, ::-1],
    "4": lambda array: array[..., ::-1, :],
    "5": lambda array: array.swapaxes(-1, -2),
    "6": lambda array: array.swapaxes(-1, -2)[..., ::-1],
    "7": lambda array: array.swapaxes(-1, -2)[..., ::-1, ::-1],
    "8": lambda array: array.swapaxes(-1, -2)[..., ::-1, :],
}
"""Maps an EXIF orientation to the function that turns an array [..., height, width] upright."""
_ROWS_BECOME_COLUMNS = frozenset("5678")
"""EXIF orientations that swap rows and columns."""
_FROM_THE_RIGHT = frozenset("2367")
"""EXIF orientations of files whose last stored column or row is the leftmost column of the upright image."""
_FROM_THE_BOTTOM = frozenset("3478")
"""EXIF orientations of files whose last stored row or column is the top row of the upright image."""


def orientation_facts(orientation: object) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return a metadata item and a notice to the user for a picture whose EXIF orientation is not applied.

    Both are empty unless ``orientation`` is 2 to 8.
    """
    if orientation not in range(2, 9):
        return {}, ()
    return {EXIF_ORIENTATION: str(orientation)}, (_as_stored(str(orientation)),)


def _as_stored(orientation: str) -> str:
    return (
        f"the input has orientation {orientation} of EXIF or TIFF, but was read as it is stored, as in GDAL; if it is"
        " not upright, turn it first, for example with PIL.ImageOps.exif_transpose"
    )


def as_seen(raster: OpenRaster) -> OpenRaster:
    """Return a view of a raster that is turned upright and has the colours of its palette, as in an image viewer.

    If nothing needs to change, return the raster itself. Closing the view closes the raster. A raster with a transform
    or ground control points is not turned, since they refer to the stored pixels. GDAL does not turn such rasters
    either.
    """
    place = raster.georeference
    placed = place is not None and (place.transform is not None or bool(place.gcps))
    turn = "" if placed else raster.metadata.get(EXIF_ORIENTATION, "")
    palette = raster.palette if _bands_of_values(raster) == 1 and raster.dtype.name in ("uint8", "uint16") else None
    return _AsSeen(raster, turn, palette) if turn in _TURNS or palette is not None else raster


def _bands_of_values(raster: OpenRaster) -> int:
    return raster.count - (raster.alpha is not None)


class _AsSeen(OpenView):
    """View of a raster that shows it upright and in the colours of its palette."""

    def __init__(self, raster: OpenRaster, turn: str, colours: NDArray[np.uint8] | None) -> None:
        swapped = turn in _ROWS_BECOME_COLUMNS
        facts = raster.facts
        if turn in _TURNS:
            facts["metadata"] = {name: text for name, text in raster.metadata.items() if name != EXIF_ORIENTATION}
            facts["assumed"] = tuple(text for text in raster.assumed if text != _as_stored(turn))
        self._values = [place for place in range(raster.count) if place + 1 != raster.alpha]
        if colours is not None:
            channels = colours.shape[1]
            alpha = None if raster.alpha is None else channels + 1
            described = (*raster.descriptions[:1],) if channels == 1 else (None,) * channels
            facts |= {"descriptions": (*described, *[None] * (alpha is not None)), "alpha": alpha}
            names = ("red", "green", "blue", "alpha") if channels == len("rgb") else ()
            facts |= {"nodata": None, "packing": (), "colours": names[: channels + (alpha is not None)]}
        super().__init__(
            raster,
            name=raster.name,
            size=raster.size[::-1] if swapped else raster.size,
            dtype=raster.dtype if colours is None else np.dtype(np.uint8),
            block=raster.block[::-1] if swapped else raster.block,
            block_bytes=raster.block_bytes,
            images=raster.images,
            **facts,
        )
        self._turn = turn
        self._colours = colours

    def _arrays(self, windows: Sequence[Window], places: Sequence[int], *, masked: bool) -> Arrays:
        stored = [self._stored(window) for window in windows]
        turned: Callable[[NDArray[Any]], NDArray[Any]] = _TURNS.get(self._turn, np.asarray)
        colours = self._colours
        channels = 0 if colours is None else colours.shape[1]
        sources = list(places) if colours is None else [self._source(place, channels) for place in places]
        arrays = self._raster._arrays(stored, sources, masked=masked)  # noqa: SLF001 - wraps it
        with closing(arrays):
            for values, mask in arrays:
                valid, array = mask, values
                if colours is not None:
                    own = [place < channels for place in places]
                    valid = Raster(values[own], mask, nodata=self._raster.nodata).valid() if masked else None
                    array = np.stack(
                        [
                            colours[band, place] if place < channels else band
                            for place, band in zip(places, values, strict=True)
                        ]
                    )
                yield (
                    np.ascontiguousarray(turned(array)),
                    None if valid is None else np.ascontiguousarray(turned(valid)),
                )

    def _source(self, place: int, colour_count: int) -> int:
        """Return the index of the stored band that is displayed as band ``place``. Both are counted from 0.

        The first ``colour_count`` displayed bands are made from the palette's only data band. The next band is alpha.
        """
        return self._values[0] if place < colour_count else (self._raster.alpha or 1) - 1

    def _stored(self, window: Window) -> Window:
        """Convert a window of the displayed raster, which is turned upright, to the window of the stored raster."""
        row, col, height, width = window.row, window.col, window.height, window.width
        if self._turn in _FROM_THE_RIGHT:
            col = self.size[1] - col - width
        if self._turn in _FROM_THE_BOTTOM:
            row = self.size[0] - row - height
        swapped = self._turn in _ROWS_BECOME_COLUMNS
        return Window(col, row, width, height) if swapped else Window(row, col, height, width)
