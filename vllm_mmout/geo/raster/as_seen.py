"""A raster as a viewer shows it: turned upright, and in colours where its values only stand for colours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.geo.raster.raster import Raster, Window
from vllm_mmout.geo.raster.windowed import Arrays, OpenRaster

EXIF_ORIENTATION = "EXIF_Orientation"
"""The item of the metadata, as GDAL has it."""
ORIENTATION_TAG = 0x0112
"""Number of the tag in EXIF and in TIFF."""
_TURNS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "2": lambda array: array[..., ::-1],
    "3": lambda array: array[..., ::-1, ::-1],
    "4": lambda array: array[..., ::-1, :],
    "5": lambda array: array.swapaxes(-1, -2),
    "6": lambda array: array.swapaxes(-1, -2)[..., ::-1],
    "7": lambda array: array.swapaxes(-1, -2)[..., ::-1, ::-1],
    "8": lambda array: array.swapaxes(-1, -2)[..., ::-1, :],
}
"""How a picture is turned, by the number of its orientation; an array ends in (height, width)."""
_ROWS_BECOME_COLUMNS = frozenset("5678")
_FROM_THE_RIGHT = frozenset("2367")
"""Orientations whose columns, as seen, run from the last column or row that is stored."""
_FROM_THE_BOTTOM = frozenset("3478")
"""Orientations whose rows, as seen, run from the last row or column that is stored."""


def orientation_facts(orientation: object) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the metadata item of an orientation from 2 to 8, and what is assumed of it; nothing of any other."""
    if orientation not in range(2, 9):
        return {}, ()
    return {EXIF_ORIENTATION: str(orientation)}, (_as_stored(str(orientation)),)


def _as_stored(orientation: str) -> str:
    return (
        f"the input says that it is to be turned (orientation {orientation} of EXIF or TIFF), and was taken as it is"
        " stored, as GDAL takes it; turn it first where it lies on its side, as with PIL.ImageOps.exif_transpose"
    )


def as_seen(raster: OpenRaster) -> OpenRaster:
    """Return a raster as a viewer shows it, which closes the given one; the given one where nothing differs.

    A raster with a transform or ground control points is not turned: these count the pixels as they are stored, and
    GDAL leaves such rasters as they are.
    """
    place = raster.georeference
    placed = place is not None and (place.transform is not None or bool(place.gcps))
    turn = "" if placed else raster.metadata.get(EXIF_ORIENTATION, "")
    palette = raster.palette if _bands_of_values(raster) == 1 and raster.dtype.name in ("uint8", "uint16") else None
    return _AsSeen(raster, turn, palette) if turn in _TURNS or palette is not None else raster


def _bands_of_values(raster: OpenRaster) -> int:
    return raster.count - (raster.alpha is not None)


class _AsSeen(OpenRaster):
    """A raster whose windows are turned, and whose values are replaced by their colours."""

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
            name=raster.name,
            size=raster.size[::-1] if swapped else raster.size,
            dtype=raster.dtype if colours is None else np.dtype(np.uint8),
            block=raster.block[::-1] if swapped else raster.block,
            block_bytes=raster.block_bytes,
            images=raster.images,
            **facts,
        )
        self._raster = raster
        self._turn = turn
        self._colours = colours

    @property
    def decoded(self) -> NDArray[np.int64]:
        """How often each segment of the file was decoded."""
        return self._raster.decoded

    def close(self) -> None:
        """Close the file; any number of times."""
        super().close()
        self._raster.close()

    def _arrays(self, windows: Sequence[Window], places: Sequence[int], *, masked: bool) -> Arrays:
        stored = [self._stored(window) for window in windows]
        turned: Callable[[NDArray[Any]], NDArray[Any]] = _TURNS.get(self._turn, np.asarray)
        colours = self._colours
        channels = 0 if colours is None else colours.shape[1]
        sources = list(places) if colours is None else [self._source(place, channels) for place in places]
        arrays = self._raster._arrays(stored, sources, masked=masked)  # noqa: SLF001 - its windows are those of this
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

    def _source(self, place: int, channels: int) -> int:
        """Return the stored band of a colour, or of alpha behind the colours."""
        return self._values[0] if place < channels else (self._raster.alpha or 1) - 1

    def _stored(self, window: Window) -> Window:
        """Return where a window lies in the raster as it is stored."""
        row, col, height, width = window.row, window.col, window.height, window.width
        if self._turn in _FROM_THE_RIGHT:
            col = self.size[1] - col - width
        if self._turn in _FROM_THE_BOTTOM:
            row = self.size[0] - row - height
        swapped = self._turn in _ROWS_BECOME_COLUMNS
        return Window(col, row, width, height) if swapped else Window(row, col, height, width)
