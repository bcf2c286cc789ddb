"""Classes `Raster` (pixels and metadata of a file) and `Window`, and the selection of bands.

Pixel coordinates start at the upper left corner of the upper left pixel, as in GDAL.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.nodata import observed
from vllm_mmout.geo.raster.packing import Packing

if TYPE_CHECKING:
    from datetime import date

    from vllm_mmout.geo.raster.georeference import Georeference

_SIDES = ("row", "col", "height", "width")


@dataclass(frozen=True, slots=True)
class Window:
    """Rectangle of a raster, in pixels."""

    row: int
    """First row of the window, counted from 0 at the raster's upper edge."""
    col: int
    """First column of the window, counted from 0 at the raster's left edge."""
    height: int
    width: int

    def __iter__(self) -> Iterator[int]:
        """Yield row, col, height and width."""
        return iter((self.row, self.col, self.height, self.width))

    @property
    def rows(self) -> slice:
        """Slice that selects the window's rows of an array."""
        return slice(self.row, self.row + self.height)

    @property
    def cols(self) -> slice:
        """Slice that selects the window's columns of an array."""
        return slice(self.col, self.col + self.width)

    def within(self, size: tuple[int, int]) -> bool:
        """Return whether the window is not empty and lies fully inside a raster of ``size`` (height, width)."""
        inside = self.row + self.height <= size[0] and self.col + self.width <= size[1]
        return inside and min(self.row, self.col) >= 0 and min(self.height, self.width) >= 1

    def grown(self, margin: int, size: tuple[int, int]) -> Window:
        """Return the window enlarged by ``margin`` pixels on each side, and clipped to a raster of ``size``."""
        row, col = max(0, self.row - margin), max(0, self.col - margin)
        end_row, end_col = self.row + self.height + margin, self.col + self.width + margin
        return Window(row, col, min(size[0], end_row) - row, min(size[1], end_col) - col)

    def in_multiples(self, number: int, size: tuple[int, int]) -> Window:
        """Return the window enlarged to a height and width that are multiples of ``number``.

        A side stays as it is where a raster of ``size`` (height, width) does not have so many pixels.
        """
        row, height = _widened(self.row, self.height, number, size[0])
        col, width = _widened(self.col, self.width, number, size[1])
        return Window(row, col, height, width)

    @classmethod
    def of_block(cls, row: int, col: int, block: tuple[int, int], size: tuple[int, int]) -> Window:
        """Return the window of the block at ``row`` and ``col`` in a grid of blocks, clipped to a raster of ``size``.

        ``row`` and ``col`` count blocks from 0. ``block`` is the (height, width) of a block, and ``size`` that of the
        raster, in pixels.
        """
        first_row, first_col = row * block[0], col * block[1]
        return cls(first_row, first_col, min(block[0], size[0] - first_row), min(block[1], size[1] - first_col))

    def __str__(self) -> str:
        last_row, last_col = self.row + self.height - 1, self.col + self.width - 1
        return f"rows {self.row} to {last_row}, columns {self.col} to {last_col}"


def _widened(first: int, count: int, multiple: int, side: int) -> tuple[int, int]:
    """Enlarge a range of pixels to a multiple of ``multiple``, on an axis of ``side`` pixels. Return (first, length).

    The range stays as it is if the result would be longer than the axis.
    """
    whole = -(-count // multiple) * multiple
    return (first, count) if whole > side else (min(first, side - whole), whole)


def as_window(value: Any) -> Window:
    """Convert a user's value to a `Window`, or raise InputError.

    The value may be any object with the attributes of `Window`, a mapping with their names, or four integers.
    """
    try:
        if isinstance(value, Mapping):
            values = {**value}
        elif hasattr(value, "row") and hasattr(value, "col"):
            values = {side: getattr(value, side) for side in _SIDES}
        else:
            values = dict(zip(_SIDES, value, strict=True))
        return Window(**{side: operator.index(number) for side, number in values.items()})
    except (AttributeError, TypeError, ValueError):
        raise InputError(f"window must be (row, col, height, width), four integers, got {value!r}") from None


def nearest_pixels(old: int, new: int) -> NDArray[np.intp]:
    """Return the index of the nearest old pixel for each of ``new`` pixels of an axis, computed in integers."""
    return (2 * np.arange(new) + 1) * old // (2 * new)


@dataclass(frozen=True, kw_only=True, eq=False)
class RasterFacts:
    """Metadata shared by rasters in memory (`Raster`) and open rasters that are read by windows (`OpenRaster`)."""

    nodata: float | None = None
    """Value of pixels without an observation, an ``int`` for integer pixels, or None if the file states no such
    value."""
    georeference: Georeference | None = None
    """Coordinate system and position, or None if the file states neither."""
    descriptions: tuple[str | None, ...] = ()
    """Description of each band, or None for a band without a description."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Metadata items of the file under the names that GDAL gives them, such as "TIFFTAG_DATETIME"."""
    alpha: int | None = None
    """Number of the alpha band, counted from 1, or None if all bands are data."""
    packing: tuple[Packing, ...] = ()
    """Scale and offset of each band. Empty if the file states none."""
    assumed: tuple[str, ...] = ()
    """Sentences about assumptions that were made about the raster. Each sentence states the unknown fact, the
    assumed value, and how to set another value."""
    colours: tuple[str | None, ...] = ()
    """Colour of each band, such as "red" or "nir", as the file states it. Empty if the file states none."""
    days: tuple[date | None, ...] = ()
    """Acquisition day (UTC) of each band. Empty if the file does not state the days band by band.

    A single day for all bands, stated by the metadata or the file name, is not included."""

    @property
    def facts(self) -> dict[str, Any]:
        """Metadata of the raster as keyword arguments, for creating another raster with the same metadata."""
        return {each.name: getattr(self, each.name) for each in fields(RasterFacts)}


@dataclass(frozen=True, eq=False)
class Raster(RasterFacts):
    """Pixels of a raster as stored in its file, and their metadata."""

    array: NDArray[Any]
    """Pixels [bands, height, width] in the dtype of the file."""
    mask: NDArray[np.bool_] | None = None
    """Mask of valid pixels, bool [height, width]: False where the file's alpha band or mask hides a pixel. None if the
    file has neither alpha band nor mask."""

    def __post_init__(self) -> None:
        if self.array.ndim != 3:
            raise InputError(f"array must be [bands, height, width], got shape {self.array.shape}")
        descriptions = tuple(self.descriptions) or (None,) * self.bands
        if len(descriptions) != self.bands:
            raise InputError(f"descriptions must have one entry per band, {self.bands}, got {len(descriptions)}")
        object.__setattr__(self, "descriptions", descriptions)

    @property
    def bands(self) -> int:
        """Number of bands."""
        return int(self.array.shape[0])

    @property
    def height(self) -> int:
        """Number of rows."""
        return int(self.array.shape[1])

    @property
    def width(self) -> int:
        """Number of columns."""
        return int(self.array.shape[2])

    def select(self, bands: Sequence[int | str]) -> Raster:
        """Return a raster with only some bands, in the given order. A band may repeat.

        A selected alpha band becomes a data band: the result has neither alpha nor mask.

        Args:
            bands: numbers from 1, or descriptions.

        Returns:
            A raster with these bands. Its array is a copy.

        Raises:
            InputError: a band does not exist, or two bands have the given description.

        """
        indices = band_places(bands, self.descriptions)
        alpha_is_selected = self.alpha is not None and self.alpha - 1 in indices
        return replace(
            self,
            array=self.array[indices],
            descriptions=tuple(self.descriptions[index] for index in indices),
            packing=tuple(self.packing[index] for index in indices) if self.packing else (),
            mask=None if alpha_is_selected else self.mask,
            alpha=None,
            colours=tuple(self.colours[index] for index in indices) if self.colours else (),
            days=tuple(self.days[index] for index in indices) if self.days else (),
        )

    def without_alpha(self) -> Raster:
        """Return the raster without its alpha band. Return the raster itself if alpha is its only band.

        The mask of valid pixels is kept.
        """
        if self.alpha is None or self.bands == 1:
            return self
        return self.select([band for band in range(1, self.bands + 1) if band != self.alpha])

    def valid(self, nodata: float | None = None) -> NDArray[np.bool_] | None:
        """Return the mask of pixels that are valid in all bands. ``nodata`` replaces the nodata value of the file.

        A pixel is invalid if any band is nodata, NaN or infinite, since a model needs every input band, or if the
        file's mask excludes it.

        Args:
            nodata: value that means "no observation", in place of the file's own value.

        Returns:
            bool [height, width], None if every pixel is valid.

        """
        planes = self.array if self.alpha is None else np.delete(self.array, self.alpha - 1, axis=0)
        return observed(planes, self.mask, self.nodata if nodata is None else nodata)


def band_places(bands: Sequence[int | str], descriptions: Sequence[str | None]) -> list[int]:
    """Convert band numbers (from 1) or descriptions to indices (from 0). A band may repeat."""
    if not len(bands):
        raise InputError("bands is empty; name at least one band")
    return [_place(band, descriptions) for band in bands]


def _place(band: int | str, descriptions: Sequence[str | None]) -> int:
    if isinstance(band, str):
        indices = [place for place, description in enumerate(descriptions) if description == band]
        if len(indices) == 1:
            return indices[0]
        problem = f"is the description of {len(indices)} bands" if indices else "does not exist"
        raise InputError(f"band {band!r} {problem}; the raster has {_listing(descriptions)}")
    if isinstance(band, bool) or not isinstance(band, int | np.integer):
        raise InputError(f"a band must be a number from 1 or a description, got {band!r}")
    if not 1 <= band <= len(descriptions):
        listing = _listing(descriptions)
        raise InputError(f"band {band} does not exist (bands count from 1); the raster has {listing}")
    return int(band) - 1


def _listing(descriptions: Sequence[str | None]) -> str:
    named = [f"{number} {name!r}" for number, name in enumerate(descriptions, start=1) if name]
    count = f"{len(descriptions)} band{'s' if len(descriptions) > 1 else ''}"
    return f"{count}: {', '.join(named)}" if named else f"{count} without descriptions"
