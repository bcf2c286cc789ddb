"""OpenRaster: a raster of any size that is read by windows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.raster import Raster, RasterFacts, Window, band_places

Arrays: TypeAlias = Generator[tuple[NDArray[Any], NDArray[np.bool_] | None], None, None]
"""The pixels [bands, height, width] of windows, and their masks [height, width] where there are any."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OpenRaster(RasterFacts, ABC):
    """A raster whose pixels are read when they are asked for; to be closed, by ``close()`` or ``with``.

    Several threads may read it at once.

    Raises:
        InputError: its transform puts its corners where numbers end.

    """

    name: str
    """What to call it in an error."""
    size: tuple[int, int]
    """Height and width, in pixels."""
    dtype: np.dtype[Any]
    """As `Raster.array` has it."""
    block: tuple[int, int]
    """Height and width of what is decoded at once."""
    block_bytes: int
    """Bytes of one block, decoded, of all bands."""
    images: int = 1
    """Images of this size that the file holds; this is the first of them."""
    palette: NDArray[np.uint8] | None = field(default=None, repr=False)
    """Colour of each value of the one band, uint8 [values, 3], or its brightness, [values, 1]; None where values are
    brightness themselves. A palette, or grey of few bits or of which 0 is white."""

    closed = False
    """Whether it was closed."""
    unpacked = False
    """Whether its numbers are no longer those of the file, so that a value of nodata says nothing of them."""

    def __post_init__(self) -> None:
        if self.georeference is not None and not self.georeference.is_usable(self.size):
            raise InputError(
                f"{self.name} has a georeference with which nothing can be computed: its transform is"
                f" {self.georeference.transform} for {self.size[0]} x {self.size[1]} pixels; correct it, as with"
                " gdal_translate -a_ullr, or leave it out, as with gdal_edit.py -unsetgt"
            )

    def told(self, **facts: Any) -> Self:
        """Return the raster with other facts, as what lies beside its file has them."""
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
        """How often each segment of the file was decoded, those of its mask at the end; empty for one in memory."""

    def members_of(self, bands: Sequence[int]) -> list[OpenRaster]:
        """The raster that each band, numbered from 1, comes from: this one, or one of those that it is made of."""
        return [self] * len(bands)

    def places(self, bands: Sequence[int | str]) -> list[int]:
        """The indices, from 0, of bands that are named by number, from 1, or by description.

        Raises:
            InputError: a band does not exist, or two bands have the description asked for.

        """
        return band_places(bands, self.descriptions)

    def read(self, window: Window | None = None, bands: Sequence[int | str] | None = None) -> Raster:
        """Read a window.

        Args:
            window: the part to read; None: all.
            bands: numbers from 1, or descriptions, in the order wanted; None: all.

        Returns:
            That part with its own georeference, as `Raster.select` would cut it from the whole.

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
        """Read windows one after the other.

        What a window touches stays decoded until the last window that touches it, then it is dropped: no segment of
        the file is decoded twice in one call.

        Args:
            windows: the parts to read, in this order.
            bands: as in `read`.

        Raises:
            InputError: at once where a window or a band does not exist; at the window where the file is damaged.

        """
        windows = tuple(windows)
        for window in windows:
            if not window.within(self.size):
                raise InputError(
                    f"a window of {window} is not within {self.name}, which has {self.size[0]} rows and {self.size[1]}"
                    " columns"
                )
        return self._rasters(windows, self._chosen(bands))

    def _chosen(self, bands: Sequence[int | str] | None) -> list[int] | None:
        self._check_open()
        return None if bands is None else self.places(bands)

    def _rasters(self, windows: Sequence[Window], places: list[int] | None) -> Generator[Raster, None, None]:
        asked_for_alpha = places is not None and self.alpha is not None and self.alpha - 1 in places
        chosen = list(range(self.count)) if places is None else places
        with closing(self._arrays(windows, chosen, masked=not asked_for_alpha)) as arrays:
            for window in windows:
                self._check_open()
                array, mask = next(arrays)
                facts = self.facts
                if self.georeference is not None:
                    facts["georeference"] = self.georeference.shifted(window.row, window.col)
                if places is not None:
                    facts |= {"descriptions": tuple(self.descriptions[place] for place in places), "alpha": None}
                    facts["packing"] = tuple(self.packing[place] for place in places) if self.packing else ()
                    facts["colours"] = tuple(self.colours[place] for place in places) if self.colours else ()
                yield Raster(array, mask, **facts)

    @abstractmethod
    def _arrays(self, windows: Sequence[Window], places: Sequence[int], *, masked: bool) -> Arrays:
        """The pixels [bands, height, width] of windows, and their masks [height, width] where there are any."""

    def close(self) -> None:
        """Let the file go; any number of times."""
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


class OpenSegments(OpenRaster):
    """A raster that a file holds in segments, and may have a mask beside."""

    def __init__(self, *, masked_by_alpha: bool, **facts: Any) -> None:
        super().__init__(**facts)
        self._masked_by_alpha = masked_by_alpha

    @abstractmethod
    def _images(self, windows: Sequence[Window], places: Sequence[int]) -> Generator[NDArray[Any], None, None]:
        """The pixels [bands, height, width] of windows; no band is asked for twice."""

    @abstractmethod
    def _masks(self, windows: Sequence[Window], places: Sequence[int]) -> Generator[NDArray[Any], None, None] | None:
        """The masks [n, height, width] that hold for bands, not 0 where all are valid; None where there are none."""

    def _arrays(self, windows: Sequence[Window], places: Sequence[int], *, masked: bool) -> Arrays:
        alpha = self.alpha - 1 if masked and self.alpha is not None and self._masked_by_alpha else None
        bands = list(dict.fromkeys([*places, *([] if alpha is None else [alpha])]))  # each band is read once
        rows = {band: row for row, band in enumerate(bands)}
        order = [rows[place] for place in places]
        plain = order == list(range(len(order)))
        with ExitStack() as stack:
            images = stack.enter_context(closing(self._images(windows, bands)))
            masks = self._masks(windows, bands) if masked else None
            if masks is not None:
                stack.enter_context(closing(masks))
            for array in images:
                mask = None
                if masks is not None:
                    mask = (next(masks) != 0).all(axis=0)
                elif alpha is not None:
                    mask = array[rows[alpha]] != 0
                yield array[: len(order)] if plain else array[order], mask


class OpenArray(OpenRaster):
    """A raster in memory; ``observed``, bool [bands, height, width], may say where each band was observed."""

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
        """Nothing: there is no file."""
        return np.zeros(0, np.int64)

    def close(self) -> None:
        """Let the pixels go."""
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
                yield part, mask  # all of it needs no copy
            else:
                yield part[list(places)], mask
