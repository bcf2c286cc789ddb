"""Apply the scale and offset of each band while a raster is read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.geo.raster.packing import Packing
from vllm_mmout.geo.raster.raster import Window
from vllm_mmout.geo.raster.windowed import Arrays, OpenRaster, OpenView


@dataclass(frozen=True, slots=True)
class Unpacking:
    """Conversion of a band's stored numbers to measured values, by scale and offset or by an integer shift.

    If scale or offset is set, the values are floats, ``number * scale + offset``. Otherwise ``shift`` is added to
    integers. With the default values, the numbers stay as they are stored.
    """

    scale: float = 1.0
    offset: float = 0.0
    shift: int = 0
    """Integer that is added to integer pixels. Sums below 0 become 0, and sums too large for the dtype become its
    maximum."""

    @property
    def to_floats(self) -> bool:
        """Whether this conversion results in floating-point numbers, because it applies a scale or an offset."""
        return (self.scale, self.offset) != (1.0, 0.0)

    @classmethod
    def of(cls, packing: Packing, *, by_file: bool) -> Unpacking:
        """Create the conversion of a band to measured values, with the scale, offset or shift in ``packing``.

        The conversion uses scale and offset if ``by_file`` is set or ``packing`` applies them by default, else the
        integer shift.
        """
        if by_file or packing.applied:
            return cls(packing.scale, packing.offset)
        return cls(shift=packing.shift)

    def __call__(self, band: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Convert the stored numbers of a band [height, width] and return them as ``dtype``."""
        if self.to_floats:
            wide = band.dtype.itemsize > 2 and band.dtype != np.float32  # float32 is not exact for these
            values: NDArray[np.floating[Any]] = band.astype(np.float64 if wide else np.float32)
            return (values * self.scale + self.offset).astype(dtype, copy=False)
        if self.shift and band.dtype.kind in "iu":
            largest = int(np.iinfo(band.dtype).max)
            shifted: NDArray[Any] = (band.astype(np.int64) + self.shift).clip(0, largest).astype(dtype)
            return shifted
        return band.astype(dtype, copy=False)


class OpenUnpacked(OpenView):
    """View of an open raster that converts pixels by scale and offset. Closing the view also closes that raster.

    Nodata is compared with the stored numbers: ``nodata`` is None, and the mask marks the valid pixels.
    """

    unpacked = True

    def __init__(self, raster: OpenRaster, unpackings: Sequence[Unpacking], nodata: float | None = None) -> None:
        floats = any(unpacking.to_floats for unpacking in unpackings)
        wide = raster.dtype == np.float64
        super().__init__(
            raster,
            name=raster.name,
            size=raster.size,
            dtype=np.dtype(np.float64 if wide else np.float32) if floats else raster.dtype,
            block=raster.block,
            block_bytes=raster.block_bytes,
            **{**raster.facts, "nodata": None, "packing": ()},
        )
        self._unpackings = tuple(unpackings)
        self._nodata = nodata

    def _arrays(self, windows: Sequence[Window], places: Sequence[int], *, masked: bool) -> Arrays:
        whole = masked and self.alpha is not None and self.alpha - 1 in places  # alpha is both mask and band
        bands = None if whole else [place + 1 for place in places]
        with closing(self._raster.windows(windows, bands)) as rasters:
            for raster in rasters:
                array = np.empty(raster.array.shape, self.dtype)
                for row, place in enumerate(places):
                    array[row] = self._unpackings[place](raster.array[row], self.dtype)
                yield array, raster.valid(self._nodata)
