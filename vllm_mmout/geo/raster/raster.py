"""Raster: the pixels of one file and all that it says of them; windows and places in one; the nodata of pixels.

Pixel coordinates count from the upper left corner of the upper left pixel, as in GDAL.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vllm_mmout.errors import InputError, SaveError
from vllm_mmout.geo.raster.packing import Packing

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.georeference import Georeference

_FEWER_DIGITS = 1e-6
"""Of itself, by how much the largest float may be missed where it is written with fewer digits."""
_SIDES = ("row", "col", "height", "width")


@dataclass(frozen=True, slots=True)
class Window:
    """A rectangle of the input, in pixels."""

    row: int
    """First row, from the top, from 0."""
    col: int
    """First column, from the left, from 0."""
    height: int
    width: int

    def __iter__(self) -> Iterator[int]:
        """Yield row, col, height and width."""
        return iter((self.row, self.col, self.height, self.width))

    @property
    def rows(self) -> slice:
        """The rows, to index an array with."""
        return slice(self.row, self.row + self.height)

    @property
    def cols(self) -> slice:
        """The columns, to index an array with."""
        return slice(self.col, self.col + self.width)

    def within(self, size: tuple[int, int]) -> bool:
        """Whether the rectangle has pixels, all of them of a raster of (height, width)."""
        inside = self.row + self.height <= size[0] and self.col + self.width <= size[1]
        return inside and min(self.row, self.col) >= 0 and min(self.height, self.width) >= 1

    @classmethod
    def of_block(cls, row: int, col: int, block: tuple[int, int], size: tuple[int, int]) -> Window:
        """A block by its row and column of blocks, as far as a raster of (height, width) goes."""
        first_row, first_col = row * block[0], col * block[1]
        return cls(first_row, first_col, min(block[0], size[0] - first_row), min(block[1], size[1] - first_col))

    def __str__(self) -> str:
        last_row, last_col = self.row + self.height - 1, self.col + self.width - 1
        return f"rows {self.row} to {last_row}, columns {self.col} to {last_col}"


def as_window(given: Any) -> Window:
    """A window of what a user gives: a `Window` or anything with its attributes, four integers, or a table of them."""
    try:
        if isinstance(given, Mapping):
            values = {**given}
        elif hasattr(given, "row") and hasattr(given, "col"):
            values = {side: getattr(given, side) for side in _SIDES}
        else:
            values = dict(zip(_SIDES, given, strict=True))
        return Window(**{side: operator.index(value) for side, value in values.items()})
    except (AttributeError, TypeError, ValueError):
        raise InputError(f"window must be (row, col, height, width), four integers, got {given!r}") from None


@dataclass(frozen=True, kw_only=True, eq=False)
class RasterFacts:
    """What a file says of its raster, whether the pixels are in memory (`Raster`) or read by windows (`OpenRaster`)."""

    nodata: float | None = None
    """Value that means "no observation"; an ``int`` for integer pixels. None without one."""
    georeference: Georeference | None = None
    """None for a file that says nothing of a place."""
    descriptions: tuple[str | None, ...] = ()
    """Description of each band, as long as the bands."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """GDAL's metadata items of the file, among them "TIFFTAG_DATETIME"."""
    alpha: int | None = None
    """Number, from 1, of the band that is alpha rather than data."""
    packing: tuple[Packing, ...] = ()
    """What the numbers of each band mean, as long as the bands; empty for a file that does not say it."""
    assumed: tuple[str, ...] = ()
    """What was assumed about it: sentences that name the fact, what was taken, and how to say it otherwise."""
    colours: tuple[str | None, ...] = ()
    """Colour of each band by the file's colour interpretation ("red", "nir"), as long as the bands; empty without."""

    @property
    def facts(self) -> dict[str, Any]:
        """All of them, by name."""
        return {known.name: getattr(self, known.name) for known in fields(RasterFacts)}


@dataclass(frozen=True, eq=False)
class Raster(RasterFacts):
    """Pixels as stored, and what is known of them."""

    array: NDArray[Any]
    """[bands, height, width], dtype as in the file."""
    mask: NDArray[np.bool_] | None = None
    """[height, width], False where the file's alpha band or mask says that there is nothing; None without either."""

    def __post_init__(self) -> None:
        if self.array.ndim != 3:
            raise InputError(f"array must be [bands, height, width], got shape {self.array.shape}")
        descriptions = tuple(self.descriptions) or (None,) * self.bands
        if len(descriptions) != self.bands:
            raise InputError(f"descriptions must be one a band, {self.bands}, got {len(descriptions)}")
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
        """Take some bands, in the order asked; a band may repeat.

        An alpha band that is asked for is data like the others: it masks nothing any more.

        Args:
            bands: numbers from 1, or descriptions.

        Returns:
            A raster of these bands alone; its array is a copy.

        Raises:
            InputError: a band does not exist, or two bands have the description asked for.

        """
        places = band_places(bands, self.descriptions)
        asked_for_alpha = self.alpha is not None and self.alpha - 1 in places
        return replace(
            self,
            array=self.array[places],
            descriptions=tuple(self.descriptions[place] for place in places),
            packing=tuple(self.packing[place] for place in places) if self.packing else (),
            mask=None if asked_for_alpha else self.mask,
            alpha=None,
            colours=tuple(self.colours[place] for place in places) if self.colours else (),
        )

    def without_alpha(self) -> Raster:
        """The bands that are data; what alpha says stays in ``mask``."""
        if self.alpha is None or self.bands == 1:
            return self
        return self.select([band for band in range(1, self.bands + 1) if band != self.alpha])

    def valid(self, nodata: float | None = None) -> NDArray[np.bool_] | None:
        """Where all bands were observed.

        A pixel is not valid where any band is nodata, NaN or infinite, since a model needs every band that it is fed,
        or where the file's mask says so.

        Args:
            nodata: value that means "no observation", instead of the file's own.

        Returns:
            bool [height, width], None if every pixel is valid.

        """
        value = self.nodata if nodata is None else nodata
        valid = np.ones(self.array.shape[1:], np.bool_) if self.mask is None else self.mask.copy()
        for number, band in enumerate(self.array, start=1):
            if number == self.alpha:
                continue
            unobserved = None if value is None else as_pixels_have_it(value, band.dtype)
            if unobserved is not None and can_hold(band.dtype, unobserved):
                valid &= band != np.array(unobserved).astype(band.dtype)
            if band.dtype.kind in "fc":
                valid &= np.isfinite(band)
        return None if valid.all() else valid


def band_places(bands: Sequence[int | str], descriptions: Sequence[str | None]) -> list[int]:
    """The indices, from 0, of bands in the order asked; a band may repeat."""
    if not len(bands):
        raise InputError("bands is empty; name at least one band")
    return [_place(band, descriptions) for band in bands]


def _place(band: int | str, descriptions: Sequence[str | None]) -> int:
    if isinstance(band, str):
        places = [place for place, description in enumerate(descriptions) if description == band]
        if len(places) == 1:
            return places[0]
        problem = f"is the description of {len(places)} bands" if places else "does not exist"
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


def parse_nodata(text: str, dtype: DTypeLike) -> float | None:
    """The value of a GDAL_NODATA tag."""
    text = text.strip(" \0")
    pixels = np.dtype(dtype)
    try:
        value = int(text) if pixels.kind in "iu" and re.fullmatch(r"[+-]?\d{1,20}", text) else float(text)
    except ValueError:
        return None
    if pixels.kind in "iu":
        return int(value) if _is_integer_of(value, pixels) else None
    if not math.isfinite(value) or pixels.kind != "f":
        return value
    value = as_pixels_have_it(value, pixels)
    return float(np.array(value).astype(pixels)) if can_hold(pixels, value) else None  # as GDAL gives it


def format_nodata(value: float, dtype: DTypeLike) -> str:
    """The text of a GDAL_NODATA tag."""
    pixels = np.dtype(dtype)
    if pixels.kind in "iu":
        if not _is_integer_of(value, pixels):
            limits = np.iinfo(pixels)
            raise SaveError(f"nodata must be an integer from {limits.min} to {limits.max} for {pixels}, got {value}")
        return str(int(value))
    limit, value = _largest(pixels), as_pixels_have_it(value, pixels)
    if math.isfinite(value) and abs(value) > limit:
        raise SaveError(f"nodata must be within {-limit} and {limit} for {pixels}, or NaN, got {value}")
    return repr(float(value))


def as_pixels_have_it(value: float, dtype: DTypeLike) -> float:
    """The largest float of ``dtype`` for what comes out above it, written with fewer digits; else the value itself.

    ``-3.4028235e38`` is what many call the lowest float32, which is a little higher. GDAL takes it for that as well.
    """
    pixels = np.dtype(dtype)
    if pixels.kind not in "fc" or not math.isfinite(value):
        return value
    limit = _largest(pixels)
    missed = limit < abs(value) and math.isclose(abs(value), limit, rel_tol=_FEWER_DIGITS)
    return math.copysign(limit, value) if missed else value


def can_hold(dtype: DTypeLike, value: float) -> bool:
    """Whether a pixel of ``dtype`` can equal ``value``; NaN equals nothing."""
    pixels = np.dtype(dtype)
    if pixels.kind in "iu":
        return _is_integer_of(value, pixels)
    return not math.isnan(value) and (math.isinf(value) or abs(value) <= _largest(pixels))


def _is_integer_of(value: float, pixels: np.dtype[Any]) -> bool:
    limits = np.iinfo(pixels)
    return math.isfinite(value) and limits.min <= value <= limits.max and value == int(value)


def _largest(pixels: np.dtype[Any]) -> float:
    return float(np.finfo(pixels).max)
