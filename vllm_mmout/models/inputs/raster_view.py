"""`RasterView`: the bands and the part of a raster that a model sees, read as a whole or by tiles."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError
from vllm_mmout.geo import Window, observed, window_of_box
from vllm_mmout.models.inputs.unpacking import has_numbers, numbers_of
from vllm_mmout.stopwatch import FILES

if TYPE_CHECKING:
    from vllm_mmout.geo import Georeference, Layer, OpenRaster, Raster
    from vllm_mmout.models.inputs.mapped_input import MappedInput
    from vllm_mmout.params import OutputParams

DTYPES = ("float32", "uint8", "int8", "uint16", "int16")
"""Dtypes that are sent to the model unchanged; other floats become float32."""


class PlanesMapper(Protocol):
    """Mapper of an open raster to a model's tensors, as `RasterMapper` is."""

    @property
    def model(self) -> str:
        """Name of the model, for messages."""

    @property
    def bands(self) -> tuple[str, ...]:
        """Names of the model's bands, in its order."""

    @property
    def max_size(self) -> int:
        """Largest height and width of one forward pass, in pixels."""

    @property
    def num_frames(self) -> int | None:
        """Number of dates that the model takes, or None if its tensor lacks an axis of dates."""

    @property
    def one_for_all(self) -> bool:
        """Whether an input of a single band is used for all of the model's bands."""

    @property
    def sizes(self) -> str:
        """The sizes that fit one forward pass, for messages."""

    def unpacked(self, layers: Sequence[Layer], params: OutputParams) -> list[Layer]:
        """Return the chosen bands of files, scaled as the request, or else the files and the model, require."""

    def fits(self, size: tuple[int, int]) -> bool:
        """Return whether a size (height, width) fits one forward pass."""

    def too_small(self, size: tuple[int, int]) -> bool:
        """Return whether a size (height, width) must be padded to fill a tile."""

    def tile_sides(self, asked: int | None) -> tuple[int, int]:
        """Return height and width of the tiles for larger inputs."""

    def tiled(self, size: tuple[int, int], params: OutputParams) -> tuple[tuple[int, int], Literal["shift", "pad"]]:
        """Return the tile size for an input of (height, width), and the handling of tiles at its edge."""

    def whole(self, view: RasterView) -> MappedInput:
        """Map an open input that fits one forward pass."""

    def tensors(self, view: RasterView, planes: NDArray[Any]) -> Mapping[str, NDArray[Any]]:
        """Return the tensors of ``forward`` for one window, by keyword."""

    def block_tensors(self, planes: NDArray[Any]) -> Mapping[str, NDArray[Any]] | None:
        """Return the tensors of a block of tiles, or None if they must be made tile by tile."""


@dataclass(frozen=True, slots=True)
class Pixels:
    """Values of one window for the model."""

    array: NDArray[Any]
    """[bands, height, width], 0 for pixels that are not valid. With several dates, a band's dates follow each other."""
    valid: NDArray[np.bool_] | None
    """bool [height, width], False for pixels that are not valid, or None if all pixels are valid."""

    @property
    def observed(self) -> bool:
        """Whether any pixel is valid."""
        return self.valid is None or bool(self.valid.any())


@dataclass(frozen=True, slots=True)
class TilePixels:
    """Values of several windows of equal size for the model."""

    array: NDArray[Any]
    """[tiles, bands, height, width], see `Pixels`. Values outside a smaller window are arbitrary."""
    valid: Sequence[NDArray[np.bool_] | None]
    """Mask of the valid pixels of each window, see `Pixels`."""

    @property
    def observed(self) -> list[int]:
        """Indices of the windows that contain a valid pixel."""
        return [place for place, mask in enumerate(self.valid) if mask is None or mask.any()]


@dataclass(frozen=True, slots=True)
class RasterView:
    """The bands and the part of an open raster that a request uses; closing the view closes the raster."""

    raster: OpenRaster
    bands: tuple[int, ...]
    """Numbers of the bands, from 1, in the model's order."""
    params: OutputParams
    mapper: PlanesMapper
    """Mapper that opened the view, which maps its pixels to tensors."""
    noted: tuple[str, ...] = ()
    """Sentences about the assumptions made in the choice of bands."""
    window: Window = field(init=False)
    """The part of the raster that is used, in the raster's pixels."""

    def __post_init__(self) -> None:
        if 0 in self.raster.size:
            raise InputError(f"the input has no pixels: {self.raster.size[0]} x {self.raster.size[1]}")
        object.__setattr__(self, "window", self._part())
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
        """(height, width) of the part of the raster that is used, in pixels."""
        return self.window.height, self.window.width

    @property
    def georeference(self) -> Georeference | None:
        """Georeference of the part of the raster that is used, or None."""
        place = self.raster.georeference
        return place if place is None else place.shifted(self.window.row, self.window.col)

    @property
    def assumed(self) -> tuple[str, ...]:
        """Sentences about the assumptions made about the input, see `RasterFacts.assumed`."""
        return (*self.raster.assumed, *self.noted)

    @property
    def itemsize(self) -> int:
        """Number of bytes of one value as sent to the model."""
        return self.raster.dtype.itemsize if self.raster.dtype.name in DTYPES and not self._scales else 4

    def read(self) -> Pixels:
        """Read the part of the raster that is used."""
        watch = FILES.get()
        with nullcontext() if watch is None else watch.running():
            (pixels,) = self.windows([Window(0, 0, *self.size)])
        return pixels

    def windows(self, windows: Sequence[Window]) -> Iterator[Pixels]:
        """Yield the pixels of windows of this view in turn. Data in the file that windows share is decoded once."""
        return map(self._seen, self.raster.windows([self.in_input(window) for window in windows], self.bands))

    def tiles(
        self, windows: Sequence[Window], *, size: tuple[int, int], count: int
    ) -> Generator[TilePixels, None, None]:
        """Yield the pixels of windows of this view, ``count`` at a time. ``size`` is the largest (height, width).

        Raises InputError if the file is damaged. Its ``tile`` is the index of the first damaged window.
        """
        arrays = self.raster.tiles([self.in_input(window) for window in windows], self.bands, size=size, count=count)
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
        valid = [
            observed(tile[:, : window.height, : window.width], mask, nodata)
            for tile, mask, window in zip(array, masks, windows, strict=True)
        ]
        array = self._as_sent(array)
        for tile, mask, window in zip(array, valid, windows, strict=True):
            if mask is not None:
                np.copyto(tile[:, : window.height, : window.width], 0, where=~mask)
        return TilePixels(array, valid)

    def in_input(self, window: Window) -> Window:
        """Convert a window of this view to a window of the raster."""
        return Window(window.row + self.window.row, window.col + self.window.col, window.height, window.width)

    def same_as(self, other: RasterView) -> bool:
        """Return whether two views seem to be of the same unchanged file."""

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

    def _of_planes(self, value: float | tuple[float, ...] | None, default: float) -> NDArray[np.float32]:
        """Return an option's values as an array [planes, 1, 1], or as [1, 1, 1] if all planes share a value."""
        numbers = np.asarray(default if value is None else value, np.float32).reshape(-1, 1, 1)
        dates = self.mapper.num_frames or 1
        return numbers if len(numbers) == 1 else np.repeat(numbers, dates, axis=0)

    def _as_sent(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return pixels [..., bands, height, width] with scale, offset and dtype as they are sent to the model."""
        if self._scales:
            numbers = numbers_of(self.params)
            scale, offset = self._of_planes(numbers[0], 1.0), self._of_planes(numbers[1], 0.0)
            return array.astype(np.float32) * scale + offset
        return array if array.dtype.name in DTYPES else array.astype(np.float32)

    def _seen(self, raster: Raster) -> Pixels:
        valid = raster.valid(None if self.raster.unpacked else self.params.nodata)
        array = self._as_sent(raster.array)
        if valid is None or valid.all():
            return Pixels(array, None)
        return Pixels(np.where(valid, array, np.zeros((), array.dtype)), valid)
