"""Read windows of files in formats that only GDAL can read, through rasterio."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.bands import is_alpha
from vllm_mmout.geo.raster.formats import Drivers, GdalFormat, gdal_target
from vllm_mmout.geo.raster.gdal_datasets import Datasets
from vllm_mmout.geo.raster.georeference import Georeference
from vllm_mmout.geo.raster.nodata import parse_nodata
from vllm_mmout.geo.raster.packing_tags import fill_of_attributes, packing_of_gdal
from vllm_mmout.geo.raster.raster import Window
from vllm_mmout.geo.raster.segmented_raster import OpenSegments
from vllm_mmout.geo.raster.tiff_colours import colours_of_palette
from vllm_mmout.geo.raster.windowed import OpenRaster

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.scratch import Scratch
    from vllm_mmout.geo.raster.segmented_image import SegmentedImage
    from vllm_mmout.geo.raster.segments import Place

_Validity: TypeAlias = Literal["values", "alpha", "dataset", "bands"]
"""Marking of valid pixels: by nodata values, an alpha band, one mask for all bands, or a mask per band."""
_NO_METADATA = frozenset({"AREA_OR_POINT", "TIFFTAG_XRESOLUTION", "TIFFTAG_YRESOLUTION", "TIFFTAG_RESOLUTIONUNIT"})
"""GDAL metadata items that are not copied: whether pixels are areas or points, and the resolution for printing."""


def open_gdal(name: str, target: str, drivers: Drivers, data: bytes | None = None) -> OpenRaster:
    """Open a raster through GDAL, from the GDAL name ``target`` or from the file content ``data`` if given.

    Args:
        name: name of the file in error messages.
        target: GDAL's name of the file; ignored if ``data`` is given.
        drivers: GDAL drivers that may open the file.
        data: content of the file, if it is in memory.

    """
    with ExitStack() as stack:
        datasets = Datasets(name, target, drivers, data)
        stack.callback(datasets.close)
        with datasets.dataset() as dataset:
            if not dataset.count:
                within = dataset.subdatasets
                images = f"{len(within)} images; give the name of one of them instead: {', '.join(within)}"
                raise InputError(f"{name} holds {images if within else 'no image'}")
            opened = OpenGdal(datasets, dataset)
        stack.pop_all()  # the raster closes the datasets
        return opened


def open_raw(name: str, target: str, header_format: GdalFormat, nbytes: int) -> OpenRaster:
    """Open a raster of raw pixel values through GDAL. A separate header file describes the pixels.

    ``target`` is GDAL's name of the raster file, and ``header_format`` is the format of the header file. Raise
    InputError if ``nbytes``, the size of the raster file, is less than the header implies.
    """
    opened = open_gdal(name, target, header_format.drivers)
    needed = math.prod(opened.size) * opened.count * opened.dtype.itemsize
    if nbytes >= needed:
        return opened
    opened.close()
    raise InputError(
        f"{name} has {nbytes} bytes, but the header beside it, of {header_format.words}, states {opened.size[0]} x"
        f" {opened.size[1]} pixels of {opened.count} bands, {needed} bytes; fetch the file again if it is truncated, or"
        " give it a header of its own"
    )


def open_gdal_name(name: str) -> OpenRaster:
    """Open a raster by a GDAL dataset name, such as ``NETCDF:"file.nc":variable`` (see `is_gdal_name`)."""
    target, drivers = gdal_target(name)
    return open_gdal(name, target, drivers)


def gdal_files(name: str) -> list[Path]:
    """Return the local files that GDAL reads for a path or GDAL dataset name; empty if GDAL cannot open it."""
    target, drivers = gdal_target(name)
    try:
        with closing(Datasets(name, target, drivers)) as datasets, datasets.dataset() as dataset:
            return [Path(file) for file in dataset.files]
    except InputError:  # raised again when the raster is read
        return []


class OpenGdal(OpenSegments):
    """An opened raster that is read through GDAL.

    It is read in parts of whole GDAL blocks, and each part once per call, so that the speed does not depend on GDAL's
    cache. The blocks of a VRT's sources are unknown; a block that overlaps several parts is decoded for each of them.
    """

    def __init__(self, datasets: Datasets, dataset: Any) -> None:
        colours = [colour.name for colour in dataset.colorinterp]
        tagged = next((band for band in dataset.indexes if colours[band - 1] == "alpha"), None)
        alpha = tagged if tagged and is_alpha(dataset.descriptions[tagged - 1]) else None
        validity = _validity(dataset, alpha)
        dtype = np.result_type(*(_dtype(text) for text in dataset.dtypes))
        nodata = None if validity == "bands" else dataset.nodatavals[0]
        if nodata is None and dataset.driver.startswith("HDF5"):
            nodata = fill_of_attributes({**dataset.tags(), **dataset.tags(1)})
        pixel = dataset.count * dtype.itemsize
        heights, widths = zip(*dataset.block_shapes, strict=True)  # block shapes of all bands
        block = part_size(dataset.driver, (max(heights), max(widths)), dataset.shape, pixel)
        super().__init__(
            name=datasets.name,
            size=dataset.shape,
            dtype=dtype,
            descriptions=tuple(text or None for text in dataset.descriptions),
            nodata=None if nodata is None else parse_nodata(str(nodata), dtype),
            georeference=Georeference.from_rasterio(dataset),
            metadata={key: text for key, text in dataset.tags().items() if key not in _NO_METADATA},
            alpha=alpha,
            packing=packing_of_gdal(dataset),
            colours=tuple(None if name == "undefined" else name for name in colours),
            block=block,
            block_bytes=math.prod(block) * pixel,
            masked_by_alpha=validity == "alpha",
            palette=_palette(dataset),
        )
        self._datasets = datasets
        self._validity = validity
        grid = (-(-self.size[0] // block[0]), -(-self.size[1] // block[1]))
        self._decoded = np.zeros((2, *grid), np.int64)

    @property
    def decoded(self) -> NDArray[np.int64]:
        """Array of read counts, int64 [2 * parts]: how often GDAL has read each part of the raster.

        A part is a rectangle that GDAL reads as a whole. The counts of the image's parts come first, then the counts of
        the mask's parts, each row by row.
        """
        return self._decoded.ravel()

    def close(self) -> None:
        """Close the file. May be called repeatedly."""
        super().close()
        self._datasets.close()

    def _image(self, places: Sequence[int]) -> tuple[SegmentedImage, Sequence[int]]:
        return GdalParts(self, self._datasets, places, self._decoded[0], masks=False), range(len(places))

    def _masks(self, places: Sequence[int]) -> tuple[SegmentedImage, Sequence[int]] | None:
        if self._validity not in ("dataset", "bands"):
            return None
        mask_bands = [0] if self._validity == "dataset" else [band for band in places if band + 1 != self.alpha]
        return GdalParts(self, self._datasets, mask_bands, self._decoded[1], masks=True), [0]


def _dtype(text: str) -> np.dtype[Any]:
    """Return NumPy's dtype for a rasterio dtype. Complex integers, which NumPy lacks, become complex64."""
    return np.dtype("complex64" if text.startswith("complex_int") else text)


def _palette(dataset: Any) -> NDArray[np.uint8] | None:
    """Return the colours of the first band's palette, or None if the band does not have a palette."""
    if dataset.colorinterp[0].name != "palette" or not dataset.dtypes[0].startswith("uint"):
        return None
    return colours_of_palette(dataset.colormap(1))


def _validity(dataset: Any, alpha: int | None) -> _Validity:
    """Return how a dataset marks valid pixels: by nodata values, an alpha band or masks (GDAL RFC 15)."""
    data = [band for band in dataset.indexes if band != alpha]
    flags = [{flag.name for flag in dataset.mask_flag_enums[band - 1]} for band in data]
    if alpha is None:  # GDAL's alpha band may be described as something else
        flags = [names for names in flags if "alpha" not in names]
    if alpha is not None and not any("per_dataset" in names and "alpha" not in names for names in flags):
        return "alpha"
    if any("per_dataset" in names for names in flags):
        return "dataset"
    nodata = {repr(dataset.nodatavals[band - 1]) for band in data}
    if len(nodata) > 1 or not all(names & {"all_valid", "nodata"} for names in flags):
        return "bands"
    return "values"


_LARGEST = 512 << 20
"""Largest size, in decoded bytes, of the part of a raster that GDAL reads at once. Larger parts are refused, since a
part must fit into memory."""
_MIN_CALL_BYTES = 2**18
"""Minimum number of decoded bytes that one GDAL call should read, because many small calls are slow."""
_SIDE = 1024
"""Maximum height and width, in pixels, of the part of a VRT that GDAL reads at once, unless a VRT block is larger."""
_MAX_VRT_PART_BYTES = 32 << 20
"""Maximum size, in decoded bytes, of the part of a VRT that GDAL reads at once, unless a VRT block is larger.

Few large reads are faster than many small reads, because GDAL searches all sources of the VRT in each read."""


def part_size(driver: str, block: tuple[int, int], size: tuple[int, int], pixel_bytes: int) -> tuple[int, int]:
    """Return the height and width, in pixels, of the part of a raster that GDAL should read at once.

    A part is a GDAL block, or several rows of blocks if a block is small, as in formats that are decoded row by row.
    The parts of a VRT are larger: its blocks say nothing about the blocks of its sources, and each source block is
    decoded once for every part that it overlaps.

    Args:
        driver: name of the GDAL driver.
        block: (height, width) of a GDAL block, in pixels.
        size: (height, width) of the raster, in pixels.
        pixel_bytes: bytes of a pixel with all bands.

    """
    height, width = block
    if driver == "VRT":
        side = min(_SIDE, max(1, math.isqrt(_MAX_VRT_PART_BYTES // pixel_bytes)))
        height *= max(1, side // height)
        width *= max(1, side // width)
    height *= max(1, _MIN_CALL_BYTES // (height * width * pixel_bytes))
    return min(height, size[0]), min(width, size[1])


class GdalParts:
    """Adapter that lets `read_windows` read bands or masks of a GDAL dataset, in parts of whole GDAL blocks.

    ``decoded``, int64 [rows, columns] of parts, counts how often each part was read.
    """

    planes = 1
    fill = 0.0

    def __init__(
        self, raster: OpenRaster, datasets: Datasets, places: Sequence[int], decoded: NDArray[np.int64], *, masks: bool
    ) -> None:
        self.block = block = raster.block
        self.dtype = np.dtype(np.bool_) if masks else raster.dtype
        self.grid: tuple[int, int] = decoded.shape
        self.bytes = math.prod(block) * len(places) * self.dtype.itemsize
        self._raster = raster
        self._datasets = datasets
        self._bands = [place + 1 for place in places]
        self._decoded = decoded
        self._masks = masks
        self._counting = threading.Lock()
        if self.bytes > _LARGEST:
            raise InputError(
                f"{datasets.name} is stored in blocks of {block[0]} x {block[1]} pixels, {self.bytes >> 20} MiB decoded"
                f" for {len(places)} bands, which must be in memory at once, {_LARGEST >> 20} MiB at most; choose fewer"
                " bands, or convert it to a tiled GeoTIFF"
            )

    def window(self, place: Place) -> Window:
        """Return the pixel window of one part of the raster. ``place`` is (plane, row, column) in the grid of parts.

        A part is a rectangle that GDAL reads as a whole.
        """
        return Window.of_block(*place[1:], self.block, self._raster.size)

    def read(self, places: Sequence[Place], scratch: Scratch) -> Sequence[memoryview | None]:
        """Return an empty buffer for each part in ``places``. GDAL reads the bytes of a part later, in `decode`."""
        del scratch
        return [memoryview(b"")] * len(places)

    def decode(self, place: Place, data: memoryview, scratch: Scratch) -> NDArray[Any]:
        """Read and decode one part of the raster through GDAL. Return the pixels [rows, columns, bands] of the part.

        ``place`` is (plane, row, column) in the grid of parts. ``data`` and ``scratch`` are not used.
        """
        del data, scratch
        with self._counting:
            self._decoded[place[1:]] += 1
        where = self.window(place)
        slices = ((where.row, where.row + where.height), (where.col, where.col + where.width))
        with self._datasets.dataset(self._raster.block_bytes) as dataset:
            return np.moveaxis(self._pixels(dataset, slices), 0, 2)

    def _pixels(self, dataset: Any, slices: tuple[tuple[int, int], tuple[int, int]]) -> NDArray[Any]:
        if self._masks:
            valid: NDArray[np.bool_] = (dataset.read_masks(self._bands, window=slices) != 0).all(axis=0)
            return valid[np.newaxis]
        if len({dataset.dtypes[band - 1] for band in self._bands}) == 1:
            pixels: NDArray[Any] = dataset.read(self._bands, window=slices, out_dtype=self.dtype.name)
            return pixels
        # rasterio reads several bands at once only if they have the same dtype
        return np.stack([dataset.read(band, window=slices, out_dtype=self.dtype.name) for band in self._bands])
