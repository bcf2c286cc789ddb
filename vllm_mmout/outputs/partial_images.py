"""Pictures of a raster while its tiles are joined, and how somebody asks for one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.geo import Raster
from vllm_mmout.outputs.image import ImageOutput
from vllm_mmout.outputs.rendering import PREVIEW, render

if TYPE_CHECKING:
    from vllm_mmout.outputs.raster import RasterOutput

_STRIP = 64
"""Rows that are coloured at once: what that takes in between is several times as large as they are."""


def moments(wanted: int, total: int) -> list[int]:
    """After how many of ``total`` parts or steps each of the ``wanted`` pictures is due: none twice or at the end."""
    return sorted({-(-number * total // (wanted + 1)) for number in range(1, wanted + 1)} - {total})


class PreviewRequest:
    """Asks for pictures of one request, any number of times and from any thread.

    A picture comes at the next tile that is joined; what was asked several times until then is asked once. What is
    asked after the last tile is forgotten: the result comes next.
    """

    def __init__(self) -> None:
        self._asked = False

    def ask(self) -> None:
        """Ask for a picture; never waits."""
        self._asked = True

    def taken(self) -> bool:
        """Whether a picture was asked for since the last call; for the one thread that joins."""
        if not self._asked:
            return False
        self._asked = False  # who asks between the two lines gets the picture that is made now
        return True


class PartialImages:
    """Keeps the picture of a raster that is being joined, and takes copies of it at given moments and when asked.

    It has the size of the result's ``image``, the longer side at most `PREVIEW` pixels. Pixels that are finished equal
    those of ``image``, all others are transparent, but for two things that are known at the end alone: grey and
    colours that are stretched go from the smallest to the largest value *so far*, and of a larger raster that has no
    classes each pixel is that in the middle of those that become one, not their mean.

    In memory are the bands that the picture shows and one byte a pixel, and of each copy that nobody took the bands
    and one bit a pixel, until the last copy was taken, or `close`; with a ``watch``, which asks for copies at any
    tile, until the last tile is joined. Of copies that were asked for only the newest waits to be taken.

    Of ``wanted`` copies the k-th is due when ``k / (wanted + 1)`` of the ``total`` tiles are joined; none is due
    twice, or with the last tile. ``notify`` is called in the one thread that joins; any other may take copies, and
    ask. What they share has locks of C alone.
    """

    def __init__(
        self, wanted: int, total: int, notify: Callable[[], None], watch: PreviewRequest | None = None
    ) -> None:
        self._moments = deque(moments(wanted, total))
        self._total = total
        self._joined = 0
        self._notify = notify
        self._watch = watch
        self._copies: deque[PartialImage] = deque()
        self._picture: tuple[NDArray[Any], NDArray[np.bool_]] | None = None
        """The bands, and which pixels are seen; None before the first tile, and when no copy can come any more."""
        self._middles: tuple[NDArray[np.intp], NDArray[np.intp]]
        self._palette: NDArray[np.uint8] | None = None
        self.awaited = True
        """Whether somebody waits for copies. Of those taken while nobody does only the newest is kept: a slow client
        must neither hold up a scene nor fill the memory with pictures."""

    def begin(self, size: tuple[int, int], pixel: RasterOutput) -> None:
        """Say what is joined: (height, width) of the raster, and any finished pixels of it."""
        longer = max(size)
        reduced = size if longer <= PREVIEW else tuple(max(1, round(side * PREVIEW / longer)) for side in size)
        middles = [(2 * np.arange(new) + 1) * old // (2 * new) for old, new in zip(size, reduced, strict=True)]
        self._middles = middles[0], middles[1]
        self._palette = pixel.palette
        if self._moments or self._watch is not None:
            bands = np.zeros((3 if pixel.count == 3 else 1, *reduced), _stored(pixel.array).dtype)
            self._picture = bands, np.zeros(reduced, np.bool_)

    def put(self, row: int, col: int, output: RasterOutput, valid: NDArray[np.bool_] | None = None) -> None:
        """Take a rectangle that is finished; nodata stands where ``valid``, bool [height, width], is False."""
        if (picture := self._picture) is None:
            return
        bands, seen = picture
        rows, these_rows = _picked(self._middles[0], row, output.height)
        cols, these_cols = _picked(self._middles[1], col, output.width)
        pixels = _stored(output.array)[:, these_rows][:, :, these_cols]
        if not pixels.size:
            return
        bands[:, rows, cols] = pixels[: len(bands)]
        observed = Raster(pixels, nodata=output.nodata).valid()
        seen[rows, cols] = True if observed is None else observed
        if valid is not None:
            seen[rows, cols] &= valid[these_rows][:, these_cols]

    def joined(self) -> None:
        """Count a tile of which all was taken that is finished; a copy may be due."""
        self._joined += 1
        if (picture := self._picture) is None:
            return
        due = asked = False
        while self._moments and self._moments[0] <= self._joined:
            self._moments.popleft()
            due = True
        if self._watch is None:
            ended = not self._moments
        else:
            asked, ended = self._watch.taken(), self._joined == self._total
        if ended:
            self._picture = None
        if not (due or asked):
            return
        if not self.awaited:
            self._copies.clear()
        with suppress(IndexError):  # nothing waits, or it was taken in between
            if self._copies[-1].asked:
                self._copies.pop()
        bands, seen = picture
        if not ended:  # else the last copy is the picture itself
            bands = bands.copy()
        self._copies.append(PartialImage(self._joined, bands, np.packbits(seen, axis=1), self._palette, asked=not due))
        self._notify()

    def take(self) -> PartialImage | None:
        """The oldest copy that is left, or None; it is the caller's."""
        with suppress(IndexError):
            return self._copies.popleft()
        return None

    def close(self) -> None:
        """Forget all; whoever joins may go on."""
        self._picture = None
        self._copies.clear()


@dataclass(frozen=True, slots=True, eq=False)
class PartialImage:
    """The picture of a raster at one moment."""

    tiles: int
    """Tiles that had been joined."""
    bands: NDArray[Any]
    """[1 or 3, height, width]."""
    shown: NDArray[np.uint8]
    """Which pixels are seen, eight of a row in each byte."""
    palette: NDArray[np.uint8] | None
    asked: bool = False
    """Whether it is there since somebody asked, and a newer one may take its place."""

    def image(self) -> ImageOutput:
        """The picture, RGBA: of what is not finished, and of nodata, nothing is seen."""
        count, height, width = self.bands.shape
        coloured = self.palette is not None and count == 1 and self.bands.dtype.kind in "iu"
        as_it_is = count == 3 and self.bands.dtype == np.uint8
        strip = _STRIP if coloured or as_it_is else height  # others are stretched alike everywhere
        picture = np.empty((height, width, 4), np.uint8)
        for row in range(0, height, strip):
            rows = slice(row, row + strip)
            shown = np.unpackbits(self.shown[rows], axis=1, count=width).view(np.bool_)
            picture[rows] = np.asarray(render(self.bands[:, rows], shown, self.palette).convert("RGBA"))
            picture[rows][~shown] = 0
        return ImageOutput(picture)


def _picked(middles: NDArray[np.intp], start: int, length: int) -> tuple[slice, slice | NDArray[np.intp]]:
    """The pixels of the picture whose middles lie in a stretch of an axis, and where these lie in the stretch."""
    first, last = np.searchsorted(middles, (start, start + length)).tolist()
    return slice(first, last), slice(None) if last - first == length else middles[first:last] - start


def _stored(array: NDArray[Any]) -> NDArray[Any]:
    return array.view(np.uint8) if array.dtype == np.bool_ else array
