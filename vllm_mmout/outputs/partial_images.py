"""Make previews of a raster while its tiles are computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.geo import Raster
from vllm_mmout.outputs.image import ImageOutput
from vllm_mmout.outputs.rendering import PREVIEW, render

if TYPE_CHECKING:
    from vllm_mmout.geo import Georeference
    from vllm_mmout.outputs.raster import RasterOutput

FULL_WIDTH: Final = "MMOUT_FULL_WIDTH"
"""Key of a metadata item in the GeoTIFF of a preview: the width of the whole raster in pixels."""
_STRIP = 64
"""Number of rows coloured at a time. Colouring needs temporary arrays several times the size of the rows."""


def moments(wanted: int, total: int) -> list[int]:
    """Return after how many finished tiles or steps each preview is due. The previews are evenly spaced.

    The numbers are ascending and distinct, at most ``wanted``. ``total``, the number of all tiles or steps, is left
    out, since the result is complete then.
    """
    return sorted({-(-number * total // (wanted + 1)) for number in range(1, wanted + 1)} - {total})


class PreviewRequest:
    """Flag that any thread can set to request a preview of a raster that is being computed.

    A picture is made when the next tile is joined. Asking several times before that makes a single picture. Asking
    after the last tile has no effect, since the result comes next.
    """

    def __init__(self) -> None:
        self._asked = False

    def ask(self) -> None:
        """Request a preview. Never blocks."""
        self._asked = True

    def taken(self) -> bool:
        """Return whether a preview was requested since the last call of `taken`. Clear the request.

        Call this only in the thread that joins tiles.
        """
        if not self._asked:
            return False
        self._asked = False  # a thread that asks between these two lines gets the picture made now
        return True


class PartialImages:
    """Maker of previews (`PartialImage`) of a raster while its tiles are computed.

    Each finished tile is added to a picture of reduced size. A preview is a copy of this picture.

    The picture has the size of the result's ``image``, at most `PREVIEW` pixels on the longer side. Finished pixels
    equal the pixels of ``image``, and all others are transparent. There are two exceptions, which would need
    the whole raster: stretched grey and colours range from the smallest to the largest value *so far*, and in a reduced
    picture of a raster without classes each pixel is the middle pixel of the covered pixels, not their mean.

    Memory holds the bands of the picture and a byte per pixel, and for each copy not taken yet the bands and a bit per
    pixel. The picture is freed after the last due copy was made, or by `close`. With a ``watch``, which can ask for a
    copy at any tile, it is freed after the last tile. Of the copies that were asked for, only the newest is kept.

    The k-th of ``wanted`` copies is due when ``k / (wanted + 1)`` of the ``total`` tiles are joined. No copy is due
    with the last tile, and no two copies are due with the same tile. ``notify`` is called, after each copy, in the
    thread that joins tiles. Any other thread may take copies and ask for copies. The shared objects are only locked
    within C code.
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
        """Picture to which tiles are added, as (bands, mask). The mask is True at finished pixels that are not nodata.

        None before `begin`, and after the last preview was made."""
        self._middles: tuple[NDArray[np.intp], NDArray[np.intp]]
        self._palette: NDArray[np.uint8] | None = None
        self._size = 0, 0
        self._georeference: Georeference | None = None
        self.awaited = True
        """True while a client waits for the next preview. While False, only the newest preview is kept, to save
        memory."""

    def begin(self, size: tuple[int, int], sample: RasterOutput, georeference: Georeference | None = None) -> None:
        """Start previews of a raster of ``size`` (height, width), which is not computed yet.

        The previews have the dtype, palette and number of bands of ``sample``, the first computed part of the raster.
        ``georeference`` is that of the raster.
        """
        self._size, self._georeference = size, georeference
        longer = max(size)
        reduced = size if longer <= PREVIEW else tuple(max(1, round(side * PREVIEW / longer)) for side in size)
        middles = [(2 * np.arange(new) + 1) * old // (2 * new) for old, new in zip(size, reduced, strict=True)]
        self._middles = middles[0], middles[1]
        self._palette = sample.palette
        if self._moments or self._watch is not None:
            bands = np.zeros((3 if sample.count == 3 else 1, *reduced), _stored(sample.array).dtype)
            self._picture = bands, np.zeros(reduced, np.bool_)

    def put(self, row: int, col: int, output: RasterOutput, valid: NDArray[np.bool_] | None = None) -> None:
        """Add the pixels of ``output``, a finished rectangle of the raster that begins at ``row`` and ``col``.

        Pixels where ``valid``, bool [height, width], is False are nodata.
        """
        if (picture := self._picture) is None:
            return
        bands, seen = picture
        rows, source_rows = _preview_slice(self._middles[0], row, output.height)
        cols, source_cols = _preview_slice(self._middles[1], col, output.width)
        pixels = _stored(output.array)[:, source_rows][:, :, source_cols]
        if not pixels.size:
            return
        bands[:, rows, cols] = pixels[: len(bands)]
        observed = Raster(pixels, nodata=output.nodata).valid()
        seen[rows, cols] = True if observed is None else observed
        if valid is not None:
            seen[rows, cols] &= valid[source_rows][:, source_cols]

    def joined(self) -> None:
        """Record that a tile was joined to the raster. Make a preview if a preview is due or was requested.

        Call `put` with the tile's pixels before.
        """
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
        with suppress(IndexError):  # the queue is empty, or another thread took its last copy meanwhile
            if self._copies[-1].asked:
                self._copies.pop()
        bands, seen = picture
        if not ended:  # the last copy may share the arrays of the picture, which do not change any more
            bands = bands.copy()
        shown = np.packbits(seen, axis=1)
        place = self._size, self._georeference
        self._copies.append(PartialImage(self._joined, bands, shown, self._palette, *place, asked=not due))
        self._notify()

    def take(self) -> PartialImage | None:
        """Remove and return the oldest preview that was not taken yet. Return None if all were taken."""
        with suppress(IndexError):
            return self._copies.popleft()
        return None

    def close(self) -> None:
        """Free the memory of all previews. Further calls of `put` are ignored."""
        self._picture = None
        self._copies.clear()


@dataclass(frozen=True, slots=True, eq=False)
class PartialImage:
    """Preview of a raster that is not complete yet."""

    tiles: int
    """Number of tiles that the preview shows."""
    bands: NDArray[Any]
    """Bands of the preview, [1 or 3, height, width], in the dtype of the raster."""
    shown: NDArray[np.uint8]
    """Mask of the finished pixels that are not nodata, packed along rows by ``numpy.packbits``."""
    palette: NDArray[np.uint8] | None
    """Colours of the classes, uint8 [n, 3], or None for a raster without a palette."""
    size: tuple[int, int]
    """Height and width of the whole raster in pixels."""
    georeference: Georeference | None
    """Georeference of the whole raster, or None if it is unknown."""
    asked: bool = False
    """True if a client requested this preview, False if it was made after a set number of tiles.

    A newer preview replaces a requested preview that no client has taken."""

    def image(self) -> GrowingImage:
        """Return the preview as RGBA. Unfinished pixels and nodata are transparent."""
        count, height, width = self.bands.shape
        coloured = self.palette is not None and count == 1 and self.bands.dtype.kind in "iu"
        unchanged = count == 3 and self.bands.dtype == np.uint8
        strip = _STRIP if coloured or unchanged else height  # stretching needs the range of the whole picture
        picture = np.empty((height, width, 4), np.uint8)
        for row in range(0, height, strip):
            rows = slice(row, row + strip)
            visible = np.unpackbits(self.shown[rows], axis=1, count=width).view(np.bool_)
            picture[rows] = np.asarray(render(self.bands[:, rows], visible, self.palette).convert("RGBA"))
            picture[rows][~visible] = 0
        return GrowingImage(picture, self.size, self.georeference)


class GrowingImage(ImageOutput):
    """RGBA preview of an incomplete raster, with the georeference of the whole raster.

    Args:
        array: uint8 [height, width, 4].
        size: height and width of the whole raster in pixels.
        georeference: georeference of the whole raster, or None if it is unknown.

    """

    def __init__(self, array: NDArray[np.uint8], size: tuple[int, int], georeference: Georeference | None) -> None:
        super().__init__(array)
        self.size = size
        self.georeference = georeference

    def geotiff(self) -> bytes | None:
        """Return the preview as a GeoTIFF of red, green, blue and alpha.

        The metadata item `FULL_WIDTH` tells the width of the whole raster in pixels. Return None if the raster has no
        transform or no coordinate system. The file is not compressed, since a newer file soon replaces it.

        Raises:
            InputError: the coordinate system cannot be written to a GeoTIFF.

        """
        whole = self.georeference
        if whole is None or whole.crs is None or whole.transform is None:
            return None
        from rasterio.io import MemoryFile

        place = whole.resized(self.size, (self.height, self.width)).to_rasterio()
        form = {"driver": "GTiff", "photometric": "RGB", "alpha": "YES", "tiled": True}
        with MemoryFile() as memory:
            with memory.open(**form, count=4, dtype="uint8", height=self.height, width=self.width, **place) as file:
                file.write(np.moveaxis(self.array, 2, 0))
                file.update_tags(**{FULL_WIDTH: self.size[1]})
            return bytes(memory.getbuffer())


def _preview_slice(middles: NDArray[np.intp], start: int, length: int) -> tuple[slice, slice | NDArray[np.intp]]:
    """Find the preview pixels that show a range of raster pixels along one axis. Return them as a slice.

    Also return the index of the raster pixels that these preview pixels show, counted from ``start``. The range begins
    at the raster pixel ``start`` and has ``length`` raster pixels. Each preview pixel shows a single raster pixel,
    whose index is in ``middles``.
    """
    first, last = np.searchsorted(middles, (start, start + length)).tolist()
    return slice(first, last), slice(None) if last - first == length else middles[first:last] - start


def _stored(array: NDArray[Any]) -> NDArray[Any]:
    return array.view(np.uint8) if array.dtype == np.bool_ else array
