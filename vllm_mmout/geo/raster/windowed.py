"""Define `OpenRaster`, the base class of rasters of any size that are read window by window."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError, MMOutError
from vllm_mmout.geo.raster.raster import Raster, RasterFacts, Window, band_places
from vllm_mmout.geo.raster.window_blocks import Empty, Slots

Arrays: TypeAlias = Generator[tuple[NDArray[Any], NDArray[np.bool_] | None], None, None]
"""Generator that yields (pixels [bands, height, width], mask [height, width] or None) for each window."""
Tiles: TypeAlias = Generator[tuple[NDArray[Any], list[NDArray[np.bool_] | None]], None, None]
"""Generator of pairs: pixels [windows, bands, height, width], and for each window a mask [height, width] or None."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OpenRaster(RasterFacts, ABC):
    """Raster whose pixels are read on demand. Close it with ``close()``, or use it in a ``with`` statement.

    Several threads may read it at the same time.

    Raises:
        InputError: its georeference gives the corners coordinates that are too large to compute with.

    """

    name: str
    """Name of the raster for error messages, such as its file name."""
    size: tuple[int, int]
    """Height and width of the raster in pixels."""
    dtype: np.dtype[Any]
    """Dtype of the raster's pixels when they are read."""
    block: tuple[int, int]
    """Height and width in pixels of the file's internal blocks (tiles or strips), which are decoded as a whole."""
    block_bytes: int
    """Decoded size, in bytes, of one internal block (tile or strip) of the file, all bands together."""
    images: int = 1
    """Number of images in the file that have the raster's size. Only the first image is read."""
    palette: NDArray[np.uint8] | None = field(default=None, repr=False)
    """Display colour of each pixel value of a single-band raster: uint8 [values, 3] for RGB, or uint8 [values, 1] for
    grey. None if the pixel values are displayed unchanged."""

    interleaved: bool = False
    """True if the file stores the bands of a pixel side by side. Arrays with this layout are then filled fastest."""

    closed = False
    """Whether ``close()`` was called."""
    unpacked = False
    """Whether scale and offset were already applied. The file's nodata value then no longer matches the pixels."""

    def __post_init__(self) -> None:
        if self.georeference is not None and not self.georeference.is_usable(self.size):
            raise InputError(
                f"{self.name} has a georeference whose coordinates are not finite or too large: its transform is"
                f" {self.georeference.transform} for {self.size[0]} x {self.size[1]} pixels; correct it, for example"
                " with gdal_translate -a_ullr, or remove it, for example with gdal_edit.py -unsetgt"
            )

    def told(self, **facts: Any) -> Self:
        """Set fields of this raster to values told by the caller, such as ``nodata=0``, and return this raster."""
        for name, value in facts.items():
            object.__setattr__(self, name, value)
        return self

    @property
    def count(self) -> int:
        """Number of bands."""
        return len(self.descriptions)

    @property
    @abstractmethod
    def decoded(self) -> NDArray[np.int64]:
        """Array of decode counts, int64 [n]: how often each strip or tile of the file, mask included, was decoded."""

    def members_of(self, bands: Sequence[int]) -> list[OpenRaster]:
        """Return a list of rasters: for each band number (from 1) in ``bands``, the raster that holds the band."""
        return [self] * len(bands)

    def places(self, bands: Sequence[int | str]) -> list[int]:
        """Return the indices (from 0) of ``bands``, which are band numbers (from 1) or descriptions such as "red".

        Raises:
            InputError: a band does not exist, or two bands have the given description.

        """
        return band_places(bands, self.descriptions)

    def read(self, window: Window | None = None, bands: Sequence[int | str] | None = None) -> Raster:
        """Read a window.

        Args:
            window: the part to read; None reads the whole raster.
            bands: numbers (from 1) or descriptions, in the order of the result; None reads all bands.

        Returns:
            The window as a raster with its own georeference and the bands as `Raster.select` returns them.

        Raises:
            InputError: the window or a band does not exist, or the file is damaged there.

        """
        whole = Window(0, 0, *self.size)
        with closing(
            self.windows([window], bands) if window else self._rasters([whole], self._chosen(bands))
        ) as rasters:
            return next(rasters)

    def windows(
        self, windows: Iterable[Window], bands: Sequence[int | str] | None = None
    ) -> Generator[Raster, None, None]:
        """Yield one raster for each of ``windows``, in their order, with its own georeference.

        A segment of the file is decoded once, unless more than 512 MiB of other windows come between two that need it.

        Args:
            windows: the parts to read, in this order.
            bands: numbers (from 1) or descriptions, in the order of the result; None reads all bands.

        Raises:
            InputError: a window or a band does not exist (raised by the call), or the file is damaged (raised when the
                window is read).

        """
        return self._rasters(self._within(windows), self._chosen(bands))

    def tiles(
        self,
        windows: Iterable[Window],
        bands: Sequence[int | str] | None = None,
        *,
        size: tuple[int, int],
        count: int,
        empty: Empty = np.empty,
    ) -> Tiles:
        """Yield the pixels of ``windows`` in arrays of several windows, with a validity mask for each window.

        The pixels of a TIFF are decoded straight into the arrays. Segments are decoded as often as by `windows`.

        Args:
            windows: the parts to read, in this order.
            bands: numbers (from 1) or descriptions, in the order of the result; None reads all bands.
            size: height and width of the arrays. A smaller window is in the upper left corner of its part of the array,
                and the rest is not filled.
            count: number of windows in an array. The last array may have fewer.
            empty: function that returns an array [windows, bands, height, width] for this shape and a dtype, with any
                strides (see `bands_last`). Other threads may call it, one at a time, for several arrays in advance.

        Raises:
            InputError: a window or a band does not exist, or a window is larger than ``size`` (raised by the call), or
                the file is damaged (raised in place of an array; ``tile`` is the index of its first damaged window).

        """
        windows = self._within(windows)
        for window in windows:
            if window.height > size[0] or window.width > size[1]:
                raise InputError(f"a window of {window} is larger than an array of {size[0]} x {size[1]} pixels")
        chosen = self._chosen(bands)
        places = list(range(self.count)) if chosen is None else chosen
        return self._tiles(windows, places, Slots(size, count, empty), masked=self._masked(chosen))

    def _within(self, windows: Iterable[Window]) -> tuple[Window, ...]:
        windows = tuple(windows)
        for window in windows:
            if not window.within(self.size):
                raise InputError(
                    f"a window of {window} is not within {self.name}, which has {self.size[0]} rows and {self.size[1]}"
                    " columns"
                )
        return windows

    def _chosen(self, bands: Sequence[int | str] | None) -> list[int] | None:
        self._check_open()
        return None if bands is None else self.places(bands)

    def _masked(self, places: Sequence[int] | None) -> bool:
        """Return whether to read the file's mask. Return False if ``places`` selects the alpha band as data."""
        return places is None or self.alpha is None or self.alpha - 1 not in places

    def _rasters(self, windows: Sequence[Window], places: list[int] | None) -> Generator[Raster, None, None]:
        chosen = list(range(self.count)) if places is None else places
        with closing(self._arrays(windows, chosen, masked=self._masked(places))) as arrays:
            for window in windows:
                self._check_open()
                array, mask = next(arrays)
                facts = self.facts
                if self.georeference is not None:
                    facts["georeference"] = self.georeference.shifted(window.row, window.col)
                if places is not None:
                    facts |= {"descriptions": tuple(self.descriptions[place] for place in places), "alpha": None}
                    for name in ("packing", "colours", "days"):
                        facts[name] = tuple(facts[name][place] for place in places) if facts[name] else ()
                yield Raster(array, mask, **facts)

    @abstractmethod
    def _arrays(self, windows: Sequence[Window], places: Sequence[int], *, masked: bool) -> Arrays:
        """Yield the pixels [bands, height, width] of each window, and its mask [height, width] or None."""

    def _tiles(self, windows: Sequence[Window], places: Sequence[int], slots: Slots, *, masked: bool) -> Tiles:
        """Yield pairs: pixels [windows, bands, height, width], and a list with the mask (or None) of each window."""
        with closing(self._arrays(windows, places, masked=masked)) as arrays:
            for first in range(0, len(windows), slots.count):
                together = windows[first : first + slots.count]
                block = slots.empty((len(together), len(places), *(slots.size or self.size)), self.dtype)
                masks = []
                for slot, window in enumerate(together):
                    self._check_open()
                    try:
                        array, mask = next(arrays)
                    except MMOutError as error:
                        error.tile = first + slot
                        raise
                    block[slot, :, : window.height, : window.width] = array
                    masks.append(mask)
                yield block, masks

    def close(self) -> None:
        """Close the raster and its file. May be called repeatedly."""
        self.closed = True

    def _check_open(self) -> None:
        if self.closed:
            raise InputError(f"{self.name} is closed; open it again to read it")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class OpenView(OpenRaster):
    """Base class of views, which compute their pixels from another raster. Closing a view also closes that raster."""

    def __init__(self, raster: OpenRaster, **facts: Any) -> None:
        super().__init__(**facts)
        self._raster = raster

    @property
    def decoded(self) -> NDArray[np.int64]:
        """Array of decode counts, int64 [n]: how often each strip or tile of the viewed raster was decoded."""
        return self._raster.decoded

    def close(self) -> None:
        """Close this view and the underlying raster. May be called repeatedly."""
        super().close()
        self._raster.close()


class OpenArray(OpenRaster):
    """Raster whose pixels are an array in memory. ``observed`` marks the valid pixels of each band."""

    def __init__(self, raster: Raster, name: str, observed: NDArray[np.bool_] | None = None) -> None:
        size = (raster.height, raster.width)
        super().__init__(
            name=name,
            size=size,
            dtype=raster.array.dtype,
            block=size,
            block_bytes=raster.array.nbytes,
            **raster.facts,
        )
        self._raster: Raster | None = raster
        self._observed = observed

    @property
    def decoded(self) -> NDArray[np.int64]:
        """Array of decode counts, which is empty (int64 [0]) because pixels in memory are not decoded."""
        return np.zeros(0, np.int64)

    def close(self) -> None:
        """Drop the pixels, so that their memory can be freed. May be called repeatedly."""
        super().close()
        self._raster = self._observed = None

    def _arrays(self, windows: Sequence[Window], places: Sequence[int], *, masked: bool) -> Arrays:
        everything = list(places) == list(range(self.count))
        for window in windows:
            raster = self._raster
            if raster is None:
                return
            part = raster.array[:, window.rows, window.cols]
            mask = None if raster.mask is None or not masked else raster.mask[window.rows, window.cols].copy()
            if self._observed is not None:
                observed = np.logical_and.reduce(self._observed[list(places), window.rows, window.cols])
                mask = observed if mask is None else mask & observed
            if everything and (window.height, window.width) == self.size:
                yield part, mask  # the whole raster needs no copy
            else:
                yield part[list(places)], mask
