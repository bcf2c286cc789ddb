"""Raster: the pixels of one file, with all that the file says about them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vllm_mmout.errors import InputError
from vllm_mmout.raster.bands import band_places
from vllm_mmout.raster.gdal_metadata import as_pixels_have_it, can_hold

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from vllm_mmout.raster.georeference import Georeference


@dataclass(frozen=True, slots=True, eq=False)
class Raster:
    """Pixels as stored, and what is known of them."""

    array: NDArray[Any]
    """[bands, height, width], dtype as in the file."""
    nodata: float | None = None
    """Value that means "no observation"; an ``int`` for integer pixels. None without one."""
    georeference: Georeference | None = None
    """None for a file that says nothing of a place."""
    descriptions: tuple[str | None, ...] = ()
    """Description of each band, as long as the bands."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """GDAL's metadata items of the file, among them "TIFFTAG_DATETIME"."""
    mask: NDArray[np.bool_] | None = None
    """[height, width], False where the file's alpha band or mask says that there is nothing; None without either."""
    alpha: int | None = None
    """Number, from 1, of the band that is alpha rather than data."""

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
            mask=None if asked_for_alpha else self.mask,
            alpha=None,
        )

    def without_alpha(self) -> Raster:
        """The bands that are data; what alpha says stays in ``mask``."""
        if self.alpha is None or self.bands == 1:
            return self
        return self.select([band for band in range(1, self.bands + 1) if band != self.alpha])

    def valid(self, nodata: float | None = None) -> NDArray[np.bool_] | None:
        """Where all bands were observed.

        A pixel is not valid where any band is nodata or NaN, since a model needs every band that it is fed, or where
        the file's mask says so.

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
                valid &= ~np.isnan(band)
        return None if valid.all() else valid
