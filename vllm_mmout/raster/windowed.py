"""OpenRaster: a raster of any size that is read by windows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from vllm_mmout.errors import InputError
from vllm_mmout.raster.bands import band_places
from vllm_mmout.raster.raster import Raster
from vllm_mmout.raster.window import Window

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from numpy.typing import NDArray

    from vllm_mmout.raster.georeference import Georeference


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a raster says of itself before any pixel is read."""

    name: str
    size: tuple[int, int]
    dtype: np.dtype[Any]
    descriptions: tuple[str | None, ...]
    nodata: float | None = None
    georeference: Georeference | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    alpha: int | None = None

    def __post_init__(self) -> None:
        if self.georeference is not None and not self.georeference.is_usable(self.size):
            raise InputError(
                f"{self.name} has a georeference with which nothing can be computed: its transform is"
                f" {self.georeference.transform} for {self.size[0]} x {self.size[1]} pixels; correct it, as with"
                " gdal_translate -a_ullr, or leave it out, as with gdal_edit.py -unsetgt"
            )


class OpenRaster(ABC):
    """A raster whose pixels are read when they are asked for; to be closed, by ``close()`` or ``with``.

    Several threads may read it at once.
    """

    def __init__(self, facts: Facts, block: tuple[int, int], block_bytes: int) -> None:
        self.name = facts.name
        """What to call it in an error."""
        self.size = facts.size
        """Height and width, in pixels."""
        self.count = len(facts.descriptions)
        """Number of bands."""
        self.dtype = facts.dtype
        """As `Raster.array` has it."""
        self.nodata = facts.nodata
        self.georeference = facts.georeference
        self.descriptions = facts.descriptions
        self.metadata = facts.metadata
        self.alpha = facts.alpha
        """Number, from 1, of the band that is alpha rather than data."""
        self.block = block
        """Height and width of what is decoded at once."""
        self.block_bytes = block_bytes
        """Bytes of one block, decoded, of all bands."""
        self.closed = False

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
                yield Raster(
                    array,
                    nodata=self.nodata,
                    georeference=None
                    if self.georeference is None
                    else self.georeference.shifted(window.row, window.col),
                    descriptions=tuple(self.descriptions[place] for place in chosen),
                    metadata=self.metadata,
                    mask=mask,
                    alpha=self.alpha if places is None else None,
                )

    @abstractmethod
    def _arrays(
        self, windows: Sequence[Window], places: Sequence[int], *, masked: bool
    ) -> Generator[tuple[NDArray[Any], NDArray[np.bool_] | None], None, None]:
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


class OpenArray(OpenRaster):
    """A raster in memory.

    Args:
        raster: the raster.
        name: what to call it in an error.

    """

    def __init__(self, raster: Raster, name: str) -> None:
        size = (raster.height, raster.width)
        facts = Facts(
            name=name,
            size=size,
            dtype=raster.array.dtype,
            descriptions=raster.descriptions,
            nodata=raster.nodata,
            georeference=raster.georeference,
            metadata=raster.metadata,
            alpha=raster.alpha,
        )
        super().__init__(facts, size, raster.array.nbytes)
        self._raster: Raster | None = raster

    @property
    def decoded(self) -> NDArray[np.int64]:
        """Nothing: there is no file."""
        return np.zeros(0, np.int64)

    def close(self) -> None:
        """Let the pixels go."""
        super().close()
        self._raster = None

    def _arrays(
        self, windows: Sequence[Window], places: Sequence[int], *, masked: bool
    ) -> Generator[tuple[NDArray[Any], NDArray[np.bool_] | None], None, None]:
        everything = list(places) == list(range(self.count))
        for window in windows:
            raster = self._raster
            if raster is None:
                return
            part = raster.array[:, window.rows, window.cols]
            mask = raster.mask if masked else None
            if everything and (window.height, window.width) == self.size:
                yield part, mask  # all of it needs no copy
            else:
                yield part[list(places)], None if mask is None else mask[window.rows, window.cols].copy()
