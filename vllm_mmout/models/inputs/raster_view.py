"""Read the bands and the part of a raster that a request uses, as a whole or tile by tile."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError
from vllm_mmout.geo import Window, area_of, may_be_invalid, observed, placed_area, window_of_box
from vllm_mmout.models.inputs.input_dates import dates_of
from vllm_mmout.models.inputs.unpacking import has_numbers, numbers_of
from vllm_mmout.stopwatch import FILES

if TYPE_CHECKING:
    from datetime import date

    from vllm_mmout.geo import Georeference, Layer, OpenRaster, PlacedArea, Raster
    from vllm_mmout.models.inputs.mapped_input import MappedInput
    from vllm_mmout.params import OutputParams

DTYPES = ("float32", "uint8", "int8", "uint16", "int16")
"""Dtypes that are sent to the model unchanged. float16 and float64 are converted to float32."""


class PlanesMapper(Protocol):
    """Interface of mappers that convert an open raster to a model's tensors, such as `RasterMapper`."""

    @property
    def model(self) -> str:
        """Name of the model, for error messages."""

    @property
    def bands(self) -> tuple[str, ...]:
        """Names of the bands that the model takes, in the model's order."""

    @property
    def max_size(self) -> int:
        """Maximum height and width in pixels of one forward pass."""

    @property
    def multiple_of(self) -> int:
        """Required divisor of an input's height and width, in pixels. With 32, an input may have 224 x 256 pixels."""

    @property
    def num_frames(self) -> int | None:
        """Number of dates that the model takes. None if the model's input tensor lacks an axis of dates."""

    @property
    def one_for_all(self) -> bool:
        """True if the only band of an input may serve as every band of the model. A grey picture then serves as RGB."""

    @property
    def sizes(self) -> str:
        """Input sizes that fit in one forward pass, as text for error messages."""

    def unpacked(self, layers: Sequence[Layer], params: OutputParams) -> list[Layer]:
        """Apply scale and offset to the bands ``layers``. The request's values override the values in the files."""

    def fits(self, size: tuple[int, int]) -> bool:
        """Return whether an input of ``size`` (height, width) fits in one forward pass."""

    def too_small(self, size: tuple[int, int]) -> bool:
        """Return whether an input of ``size`` (height, width) is below the model's minimum and must be padded."""

    def tile_sides(self, asked: int | None) -> tuple[int, int]:
        """Return the (height, width) of a large input's tiles. ``asked`` is the tile size in the request, or None."""

    def tiled(self, size: tuple[int, int], params: OutputParams) -> tuple[tuple[int, int], Literal["shift", "pad"]]:
        """Return the tile size (height, width) for an input, and how to treat tiles at its edge: "shift" or "pad".

        "shift" moves a tile that extends beyond the edge into the input, and "pad" fills it up by reflection.
        """

    def whole(self, view: RasterView) -> MappedInput:
        """Convert an open input that fits in one forward pass to tensors."""

    def tensors(self, view: RasterView, planes: NDArray[Any]) -> Mapping[str, NDArray[Any]]:
        """Return the tensors for one window, by keyword of ``forward``. ``planes`` are its pixels."""

    def block_tensors(self, planes: NDArray[Any]) -> Mapping[str, NDArray[Any]] | None:
        """Convert several tiles to tensors in one call. Return None if the mapper can only convert single tiles.

        ``planes`` are the pixels [tiles, bands * frames, height, width]. Axis 0 of the tensors is the tiles.
        """


@dataclass(frozen=True, slots=True)
class Pixels:
    """Pixels of one window after scale, offset and dtype conversion, and the mask of the valid pixels."""

    array: NDArray[Any]
    """Pixels [bands * dates, height, width]: all dates of the first band, then all dates of the second. 0 at nodata."""
    valid: NDArray[np.bool_] | None
    """Mask [height, width], False at nodata and outside the request's ``aoi``. None if all pixels are valid."""

    @property
    def observed(self) -> bool:
        """True if any pixel of the window is valid."""
        return self.valid is None or bool(self.valid.any())


TilePixels: TypeAlias = "tuple[NDArray[Any], Sequence[NDArray[np.bool_] | None]]"
"""Pixels [tiles, bands, height, width] after scale and offset, and one mask [height, width] for each tile.

A mask is False at nodata and outside the area of interest. None replaces a mask that is True everywhere. Pixels are 0
at nodata, and undefined beyond the raster's edge."""


@dataclass(frozen=True, slots=True)
class RasterView:
    """View of an open raster: the bands and the window that a request selects. Closing the view closes the raster."""

    raster: OpenRaster
    bands: tuple[int, ...]
    """Band numbers (from 1) in the raster, in the model's order."""
    params: OutputParams
    mapper: PlanesMapper
    """Mapper that opened the raster, and that converts its pixels to tensors."""
    noted: tuple[str, ...] = ()
    """Notes for the user about assumptions that were made when the bands were chosen."""
    may_be_empty: bool = False
    """True if an input without valid pixels is allowed. If False, `RasterMapper.whole` raises InputError for it."""
    window: Window = field(init=False)
    """Part of the raster that the request uses, as a window of the whole raster."""
    area: PlacedArea | None = field(init=False)
    """Area of interest in pixels from the upper left corner of ``window``. None if the request does not set ``aoi``."""

    def __post_init__(self) -> None:
        if 0 in self.raster.size:
            raise InputError(f"the input has no pixels: {self.raster.size[0]} x {self.raster.size[1]}")
        area = self._placed_area()
        window = self._part() if area is None else area.window.in_multiples(self.mapper.multiple_of, self.raster.size)
        object.__setattr__(self, "window", window)
        object.__setattr__(self, "area", None if area is None else area.within(window))
        for name in ("scale", "offset"):
            value = getattr(self.params, name)
            if isinstance(value, tuple) and len(value) != (count := len(self.mapper.bands)):
                raise InputError(f"{name} has {len(value)} numbers for {count} bands; give one for each", param=name)
        kind, name = self.raster.dtype.kind, self.raster.dtype.name
        if kind not in "iuf" or (name not in DTYPES and kind != "f" and not self._scales):
            raise InputError(
                f"the input's dtype is {self.raster.dtype}, model {self.mapper.model!r} takes 8 and 16 bit integers and"
                " floats; convert it, as with array.astype(np.float32), or give scale=1.0, which makes it float32"
            )

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) in pixels of ``window``, the part of the raster that the request uses."""
        return self.window.height, self.window.width

    @property
    def georeference(self) -> Georeference | None:
        """Georeference of the part of the raster that the request uses. None if the raster lacks a georeference."""
        place = self.raster.georeference
        return place if place is None else place.shifted(self.window.row, self.window.col)

    @property
    def assumed(self) -> tuple[str, ...]:
        """Notes for the user about assumptions made about the input."""
        return (*self.raster.assumed, *self.noted, *(() if self.area is None else self.area.assumed))

    @property
    def dates(self) -> tuple[date, ...] | None:
        """Acquisition date of each frame of the input, from the request or the files. None if any date is unknown."""
        return dates_of(self.raster, self.bands[: self.mapper.num_frames or 1], self.params.dates)

    @property
    def itemsize(self) -> int:
        """Bytes of one pixel value in the dtype that is sent to the model."""
        return self.raster.dtype.itemsize if self.raster.dtype.name in DTYPES and not self._scales else 4

    def read(self) -> Pixels:
        """Read all pixels of the part of the raster that the request selects by ``window``, ``bbox`` or ``aoi``."""
        watch = FILES.get()
        with nullcontext() if watch is None else watch.running():
            (pixels,) = self.windows([Window(0, 0, *self.size)])
        return pixels

    def windows(self, windows: Sequence[Window]) -> Iterator[Pixels]:
        """Yield the pixels of each window. A file block that several windows overlap is decoded only once."""
        return map(self._seen, self.raster.windows([self.in_input(window) for window in windows], self.bands), windows)

    def tiles(
        self, windows: Sequence[Window], *, size: tuple[int, int], count: int, empty: Callable[..., Any] = np.empty
    ) -> Generator[TilePixels, None, None]:
        """Yield the pixels of ``windows`` in batches. The array of a batch has tiles of equal size on axis 0.

        A batch has up to ``count`` tiles of ``size``. ``empty`` allocates the arrays, see `OpenRaster.tiles`. Raises
        InputError if the file is damaged. Its ``tile`` is the index of the first damaged window.
        """
        in_raster = [self.in_input(window) for window in windows]
        arrays = self.raster.tiles(in_raster, self.bands, size=size, count=count, empty=empty)
        with closing(arrays):
            done = 0
            for array, masks in arrays:
                yield self._seen_tiles(array, masks, windows[done : done + len(array)])
                done += len(array)

    def _seen_tiles(
        self, array: NDArray[Any], masks: Sequence[NDArray[np.bool_] | None], windows: Sequence[Window]
    ) -> TilePixels:
        nodata = None if self.raster.unpacked else self.params.nodata
        nodata = self.raster.nodata if nodata is None else nodata
        if self.area is None and all(mask is None for mask in masks) and not may_be_invalid(array.dtype, nodata):
            return self._as_sent(array), masks
        valid = [
            observed(tile[:, : window.height, : window.width], mask, nodata)
            for tile, mask, window in zip(array, masks, windows, strict=True)
        ]
        array = self._as_sent(array)
        for tile, mask, window in zip(array, valid, windows, strict=True):
            if mask is not None:
                np.copyto(tile[:, : window.height, : window.width], 0, where=~mask)
        return array, [self._inside(mask, window) for mask, window in zip(valid, windows, strict=True)]

    def in_input(self, window: Window) -> Window:
        """Convert ``window`` from pixels of the part that the request uses to pixels of the whole raster."""
        return Window(window.row + self.window.row, window.col + self.window.col, window.height, window.width)

    def same_as(self, other: RasterView) -> bool:
        """Return whether both views probably show the same file: their size, bands, dtype and metadata are equal."""

        def properties(view: RasterView) -> tuple[Any, ...]:
            raster = view.raster
            facts = raster.dtype, raster.georeference, dict(raster.metadata), repr(raster.nodata)
            return view.size, view.bands, *facts

        return properties(self) == properties(other)

    def close(self) -> None:
        """Close the raster."""
        self.raster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _placed_area(self) -> PlacedArea | None:
        if self.params.aoi is None:
            return None
        return placed_area(area_of(self.params.aoi), self.raster.georeference, self.raster.size, self.raster.name)

    def _inside(self, valid: NDArray[np.bool_] | None, window: Window) -> NDArray[np.bool_] | None:
        """Return a window's mask, True at valid pixels inside the area of interest. Return None if all are True."""
        if self.area is None:
            return valid
        inside = self.area.mask(window)
        if inside.all():
            return valid
        return inside if valid is None else inside & valid

    def _part(self) -> Window:
        params, raster = self.params, self.raster
        if params.bbox is not None:
            return window_of_box(params.bbox, params.bbox_crs, raster.georeference, raster.size, raster.name)
        window = params.window or Window(0, 0, *raster.size)
        if not window.within(raster.size):
            height, width = raster.size
            raise InputError(
                f"window ({window}) is not within the input, which has {height} rows, {width} columns",
                param="window",
            )
        return window

    @property
    def _scales(self) -> bool:
        return has_numbers(self.params)

    def _per_plane(self, value: float | tuple[float, ...] | None, default: float) -> NDArray[np.float32]:
        """Return a scale or an offset as an array that broadcasts over the pixels [bands * dates, height, width].

        ``value`` is one number for all bands, or one for each band. If it is None, ``default`` is used.
        """
        numbers = np.asarray(default if value is None else value, np.float32).reshape(-1, 1, 1)
        dates = self.mapper.num_frames or 1
        return numbers if len(numbers) == 1 else np.repeat(numbers, dates, axis=0)

    def _as_sent(self, array: NDArray[Any]) -> NDArray[Any]:
        """Apply the request's scale and offset to the pixels, and convert them to a dtype that the model accepts."""
        if self._scales:
            numbers = numbers_of(self.params)
            scale, offset = self._per_plane(numbers[0], 1.0), self._per_plane(numbers[1], 0.0)
            return array.astype(np.float32) * scale + offset
        return array if array.dtype.name in DTYPES else array.astype(np.float32)

    def _seen(self, raster: Raster, window: Window) -> Pixels:
        valid = raster.valid(None if self.raster.unpacked else self.params.nodata)
        array = self._as_sent(raster.array)
        if valid is None or valid.all():
            return Pixels(array, self._inside(None, window))
        return Pixels(np.where(valid, array, np.zeros((), array.dtype)), self._inside(valid, window))
