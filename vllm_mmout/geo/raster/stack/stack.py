"""Class `OpenStack`: combine bands of several rasters on the grid of the finest raster."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import date
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from rasterio._err import CPLE_BaseError
from rasterio.errors import RasterioError

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.areas import pixel_areas
from vllm_mmout.geo.raster.dates import date_of_raster
from vllm_mmout.geo.raster.files import THREADS
from vllm_mmout.geo.raster.nodata import as_pixels_have_it, can_hold
from vllm_mmout.geo.raster.raster import Raster, Window
from vllm_mmout.geo.raster.stack.alignment import Alignment, aligned
from vllm_mmout.geo.raster.stack.resampling import resampled
from vllm_mmout.geo.raster.windowed import Arrays, OpenRaster

_Part: TypeAlias = "tuple[NDArray[Any], NDArray[np.bool_] | None]"
"""Pixels [bands, height, width] of a window, and a mask, bool [height, width], that is True for valid pixels.

If all pixels are valid, the mask may be None."""
FINER = 1 - 1e-6
"""Ratio of pixel areas below which a raster counts as finer than another raster.

A ratio closer to 1 counts as a rounding error."""
_DATE = "TIFFTAG_DATETIME"
DESCRIBED_BY: Final = "MMOUT_DESCRIBED_BY"
"""Metadata item with the URLs of the catalogue records that describe a raster, one per line."""
DATES: Final = "MMOUT_DATES"
"""Metadata item with the acquisition times of a raster in ISO 8601 format, one per line."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Band of a stack, and the raster that contains the band."""

    raster: OpenRaster
    """Raster that the stack takes this band from."""
    place: int
    """Index (from 0) of this band among the bands of ``raster``."""
    name: str | None = None
    """Description of the band in the combined raster (`OpenStack`), or None."""


class OpenStack(OpenRaster):
    """Open raster that combines bands of several rasters, resampled to the grid of the finest raster.

    The first raster counts if several are equally fine. Coarser bands are resampled per window, and only the needed
    pixels are read. "nearest" takes the nearest pixel; "bilinear" takes the mean of four pixels weighted by distance,
    in which nodata pixels have no weight. If all rasters have the same nodata value, or ``nodata`` replaces their own,
    the stack has it too. If the values differ, the stack has no nodata value and marks nodata pixels in ``mask``.
    Closing the stack closes the rasters.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        name: str,
        *,
        resampling: Literal["nearest", "bilinear"] = "nearest",
        nodata: float | None = None,
    ) -> None:
        rasters = list({id(layer.raster): layer.raster for layer in layers}.values())
        reference = _finest(rasters)
        self._members = [
            Member(
                raster,
                aligned(raster, reference),
                raster.nodata if nodata is None or raster.unpacked else as_pixels_have_it(nodata, raster.dtype),
                resampling,
            )
            for raster in rasters
        ]
        self._sources = [(rasters.index(layer.raster), layer.place) for layer in layers]
        """Source of each band of the stack: index of the raster in `_members`, and index of the band in the raster."""
        values = [member.nodata for member in self._members]
        block, block_bytes = self._blocks()
        super().__init__(
            name=name,
            size=reference.size,
            dtype=np.result_type(*(raster.dtype for raster in rasters)),
            descriptions=tuple(layer.name for layer in layers),
            nodata=values[0] if all(_same(value, values[0]) for value in values) else None,
            georeference=reference.georeference,
            metadata=_shared_metadata(rasters),
            assumed=tuple(dict.fromkeys(text for raster in rasters for text in raster.assumed)),
            days=tuple(map(_day_of, layers)) if any(raster.days for raster in rasters) else (),
            block=block,
            block_bytes=block_bytes,
        )
        self.unpacked = any(raster.unpacked for raster in rasters)

    @property
    def decoded(self) -> NDArray[np.int64]:
        """Array of decode counts: the number of times that each strip or tile of each file was decoded, int64 [n]."""
        return np.concatenate([member.raster.decoded for member in self._members])

    def members_of(self, bands: Sequence[int]) -> list[OpenRaster]:
        """Return a list of rasters: for each band number (from 1) in ``bands``, the raster that the band comes from."""
        return [self._members[self._sources[band - 1][0]].raster for band in bands]

    def close(self) -> None:
        """Close this stack and all rasters that its bands come from. May be called repeatedly."""
        super().close()
        with ExitStack() as rasters:  # closes the others even if one fails
            for member in self._members:
                rasters.callback(member.raster.close)

    def _blocks(self) -> tuple[tuple[int, int], int]:
        """Return the block size in pixels for reading the stack, and the number of bytes decoded to read one block.

        Height and width are the largest of all rasters.
        """
        blocks = [member.block for member in self._members]
        height, width = (max(block[axis] for block in blocks) for axis in (0, 1))
        nbytes = [
            member.raster.block_bytes * math.ceil(height / rows) * math.ceil(width / cols)
            for member, (rows, cols) in zip(self._members, blocks, strict=True)
        ]
        return (height, width), sum(nbytes)

    def _arrays(self, windows: Sequence[Window], places: Sequence[int], *, masked: bool) -> Arrays:
        del masked  # stacks are never masked by alpha
        with ExitStack() as stack:
            readers = []
            for number, member in enumerate(self._members):
                bands = [band for band, place in enumerate(places) if self._sources[place][0] == number]
                if bands:
                    chosen = [self._sources[places[band]][1] for band in bands]
                    parts = stack.enter_context(closing(member.parts(windows, chosen, self.nodata)))
                    readers.append((bands, parts))
            read: Callable[..., Iterator[_Part]] = map
            if len(readers) > 1 and THREADS > 1:  # one thread per file; entered last so that it ends first
                read = stack.enter_context(ThreadPoolExecutor(THREADS, "mmout-stack")).map
            for window in windows:
                array = np.empty((len(places), window.height, window.width), self.dtype)
                mask = None
                for (bands, _), (part, valid) in zip(readers, read(next, [parts for _, parts in readers]), strict=True):
                    array[bands] = part
                    mask = valid if mask is None else mask if valid is None else mask & valid
                yield array, mask


@dataclass(frozen=True, slots=True)
class Member:
    """Raster whose bands are part of an `OpenStack`, with its alignment to the stack's grid."""

    raster: OpenRaster
    alignment: Alignment
    nodata: float | None
    resampling: Literal["nearest", "bilinear"]

    @property
    def block(self) -> tuple[int, int]:
        """Height and width of one tile or strip of this file, in pixels of the grid that all files of a stack share."""
        (height, width), (rows, cols) = self.raster.block, self.alignment.scale
        return math.ceil(height / rows), math.ceil(width / cols)

    def parts(self, windows: Sequence[Window], places: Sequence[int], stack_nodata: float | None) -> Arrays:
        """Yield the pixels and the validity mask of each window, resampled to the grid of the stack.

        ``places`` are the indices (from 0) of the bands to read from the raster. Nodata pixels are marked as invalid
        only if ``stack_nodata``, the nodata value of the stack, is None or the pixels are interpolated. Otherwise they
        keep their value.
        """
        smooth = self.resampling == "bilinear" and not self.alignment.exact
        sources = [self.alignment.source(window, bilinear=smooth) for window in windows]
        to_read = [source for source in sources if source is not None]
        with closing(self.raster.windows(to_read, [place + 1 for place in places])) as rasters:
            for window, source in zip(windows, sources, strict=True):
                size = (window.height, window.width)
                if source is None:
                    yield np.zeros((len(places), *size), self.raster.dtype), np.zeros(size, np.bool_)
                    continue
                raster = next(rasters)
                valid = self._valid(raster, by_value=smooth or stack_nodata is None)
                if self.alignment.exact and (source.height, source.width) == size:
                    yield raster.array, None if valid is None else np.logical_and.reduce(valid)
                    continue
                try:
                    pixels, new_valid = resampled(raster.array, valid, self.alignment, source, window, bilinear=smooth)
                except (RasterioError, CPLE_BaseError) as error:
                    raise InputError(
                        f"{self.raster.name} cannot be resampled to the grid of the other files: {error}; warp it first"
                        " with gdalwarp"
                    ) from error
                if smooth and stack_nodata is not None and can_hold(pixels.dtype, stack_nodata):
                    _move_off_nodata(pixels, stack_nodata)
                yield pixels, new_valid

    def _valid(self, raster: Raster, *, by_value: bool) -> NDArray[np.bool_] | None:
        """Return which pixels are valid, bool [bands, height, width], or None if all are valid.

        Pixels that the mask excludes are invalid. With ``by_value``, nodata, NaN and infinities are invalid too.
        """
        array = raster.array
        valid = None if raster.mask is None else np.broadcast_to(raster.mask, array.shape)
        if by_value and self.nodata is not None and can_hold(array.dtype, self.nodata):
            observed = array != np.array(self.nodata).astype(array.dtype)
            valid = observed if valid is None else valid & observed
        if by_value and array.dtype.kind in "fc" and not (finite := np.isfinite(array)).all():
            valid = finite if valid is None else valid & finite
        return valid


def _finest(rasters: Sequence[OpenRaster]) -> OpenRaster:
    systems = {raster.georeference.crs for raster in rasters if raster.georeference is not None}
    areas = [pixel_area(raster) if len(systems) < 2 else _square_metres(raster) for raster in rasters]
    finest, least = rasters[0], areas[0]
    for raster, area in zip(rasters, areas, strict=True):
        if area < least * FINER:
            finest, least = raster, area
    return finest


def _square_metres(raster: OpenRaster) -> float:
    """Return the area in m² of a pixel in the middle of a raster, or infinity if it is unknown."""
    areas = pixel_areas(raster.georeference, raster.size[0])
    return math.inf if areas is None else float(areas[len(areas) // 2])


def pixel_area(raster: OpenRaster) -> float:
    """Return the area of a pixel in square units of the raster's coordinate system.

    Return infinity if the raster has no transform.
    """
    place = raster.georeference
    if place is None or place.transform is None:
        return math.inf
    a, b, _, d, e, _ = place.transform
    return abs(a * e - b * d)


def _same(value: float | None, other: float | None) -> bool:
    if value is None or other is None:
        return value is other
    return value == other or (math.isnan(value) and math.isnan(other))


def _move_off_nodata(array: NDArray[Any], nodata: float) -> None:
    """Change interpolated values that happen to equal ``nodata``, so that they do not count as nodata.

    Such values become the next smaller number of the dtype. If ``nodata`` is the smallest number, they become the next
    larger number.
    """
    value = np.array(nodata).astype(array.dtype)
    if array.dtype.kind == "f":
        toward = np.inf if value == np.finfo(array.dtype).min else -np.inf
        array[array == value] = np.nextafter(value, np.array(toward, array.dtype))
    else:
        array[array == value] = value + 1 if value == np.iinfo(array.dtype).min else value - 1


def _day_of(layer: Layer) -> date | None:
    """Return the acquisition day of a band, or None if it is unknown."""
    raster = layer.raster
    return raster.days[layer.place] if raster.days else date_of_raster(raster.metadata, raster.name)


def _shared_metadata(rasters: Sequence[OpenRaster]) -> dict[str, str]:
    first, *others = (raster.metadata for raster in rasters)
    shared = {name: text for name, text in first.items() if all(other.get(name) == text for other in others)}
    described: dict[str, str] = {}
    for item in (DESCRIBED_BY, DATES):
        lines = dict.fromkeys(line for raster in rasters for line in raster.metadata.get(item, "").split("\n") if line)
        described |= {item: "\n".join(lines)} if lines else {}
    return shared | described | ({_DATE: first[_DATE]} if _DATE in first else {})
