"""Mask pixels of a raster that are cloud or shadow according to a band of quality codes, such as Sentinel-2's SCL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.raster import Window
from vllm_mmout.geo.raster.stack.alignment import aligned
from vllm_mmout.geo.raster.stack.stack import Layer, Member
from vllm_mmout.geo.raster.windowed import Arrays, OpenRaster, OpenView


@dataclass(frozen=True, slots=True)
class CloudCodes:
    """Codes for clouds in a product's band of quality codes."""

    name: str
    """Name of the band, such as "SCL"."""
    values: tuple[int, ...] = ()
    """Codes that mean cloud, cirrus or shadow. Empty if the codes are bit masks (see ``bits``)."""
    bits: int = 0
    """Bit mask. A pixel with any of these bits set is cloud, cirrus or shadow."""
    fill: int | None = None
    """Code of pixels without an observation, or None if no such code is defined. These pixels do not count as clouds,
    even if their code has some of ``bits`` set."""

    def marked(self, codes: NDArray[Any]) -> NDArray[np.bool_]:
        """Return a mask of the pixels whose codes mean cloud, cirrus or shadow, in the shape of ``codes``."""
        if self.values:
            return np.isin(codes, self.values)
        marked: NDArray[np.bool_] = (codes & self.bits) != 0
        return marked if self.fill is None else marked & (codes != self.fill)


CLOUD_CODES: Final = (
    CloudCodes("SCL", values=(3, 8, 9, 10)),  # Sentinel-2 L2A: shadow, cloud of medium and high probability, cirrus
    CloudCodes("Fmask", bits=1 << 1 | 1 << 3, fill=255),  # HLS 2.0: cloud, shadow. Bit 0, cirrus, is not used
    CloudCodes("QA_PIXEL", bits=1 << 2 | 1 << 3 | 1 << 4),  # Landsat Collection 2: cirrus, cloud, shadow
)
"""Codes for clouds in each supported quality band: Sentinel-2's SCL, HLS's Fmask and Landsat's QA_PIXEL."""
_NAMES: Final = {
    codes.name: re.compile(rf"(?:.*[\W_])?{codes.name}(?:[\W_].*)?", re.IGNORECASE | re.DOTALL) for codes in CLOUD_CODES
}


def cloud_codes_of(names: Iterable[str]) -> CloudCodes | None:
    """Return the cloud codes of a band by its names, such as "T32TQM_20240603_SCL_20m".

    Return None if none of the names belongs to a supported quality band.
    """
    names = list(names)
    return next((codes for codes in CLOUD_CODES if any(map(_NAMES[codes.name].fullmatch, names))), None)


@dataclass(frozen=True, slots=True)
class CloudLayer:
    """Band of quality codes of a raster, and the codes in it that mark clouds."""

    layer: Layer
    codes: CloudCodes


class OpenWithoutClouds(OpenView):
    """Raster whose pixels count as invalid where a band of quality codes marks a cloud.

    Closing it also closes the files of these bands.

    Coarser bands are placed on the raster's grid by the nearest pixel.

    Raises:
        InputError: a band has no integers, or does not cover the raster.

    """

    def __init__(self, raster: OpenRaster, clouds: Sequence[CloudLayer]) -> None:
        super().__init__(
            raster,
            name=raster.name,
            size=raster.size,
            dtype=raster.dtype,
            block=raster.block,
            block_bytes=raster.block_bytes,
            images=raster.images,
            palette=raster.palette,
            interleaved=raster.interleaved,
            **raster.facts,
        )
        self.unpacked = raster.unpacked
        self._clouds = []
        for cloud in clouds:
            codes = cloud.layer.raster
            if codes.dtype.kind not in "iu":
                raise InputError(f"{codes.name} has {codes.dtype} pixels, and {cloud.codes.name} has integer codes")
            self._clouds.append((Member(codes, aligned(codes, raster), None, "nearest"), cloud))

    def members_of(self, bands: Sequence[int]) -> list[OpenRaster]:
        """Return a list of rasters: for each band number (from 1) in ``bands``, the raster that holds the band."""
        return self._raster.members_of(bands)

    def close(self) -> None:
        """Close the raster and the files that its quality codes are read from. May be called repeatedly."""
        with ExitStack() as rasters:
            for member, _ in self._clouds:
                rasters.callback(member.raster.close)
            super().close()

    def _arrays(self, windows: Sequence[Window], places: Sequence[int], *, masked: bool) -> Arrays:
        whole = masked and self.alpha is not None and self.alpha - 1 in places  # alpha is both mask and band
        bands = None if whole else [place + 1 for place in places]
        with ExitStack() as stack:
            rasters = stack.enter_context(closing(self._raster.windows(windows, bands)))
            marks = [
                (cloud.codes, stack.enter_context(closing(member.parts(windows, [cloud.layer.place], None))))
                for member, cloud in self._clouds
            ]
            for raster in rasters:
                mask = raster.mask
                for codes, parts in marks:
                    pixels, _ = next(parts)
                    if (cloudy := codes.marked(pixels[0])).any():
                        mask = ~cloudy if mask is None else mask & ~cloudy
                yield raster.array, mask
