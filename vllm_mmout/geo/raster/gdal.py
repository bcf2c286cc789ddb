"""Reading what GDAL alone reads, by windows, through rasterio."""

from __future__ import annotations

import math
import threading
from collections.abc import Generator, Sequence
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
from vllm_mmout.geo.raster.packing_tags import fill_of_attributes, packing_of_gdal
from vllm_mmout.geo.raster.raster import Window, parse_nodata
from vllm_mmout.geo.raster.sequence import read_windows
from vllm_mmout.geo.raster.tiff_colours import colours_of_palette
from vllm_mmout.geo.raster.windowed import OpenRaster, OpenSegments

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.segments import Place

_Validity: TypeAlias = Literal["values", "alpha", "dataset", "bands"]
"""Whether values alone say which pixels are valid, or an alpha band, a mask of the dataset, or masks of the bands."""
_NO_METADATA = frozenset({"AREA_OR_POINT", "TIFFTAG_XRESOLUTION", "TIFFTAG_YRESOLUTION", "TIFFTAG_RESOLUTIONUNIT"})
"""Items that GDAL makes of what is no metadata: pixels as points, and dots per inch."""


def open_gdal(name: str, target: str, drivers: Drivers, data: bytes | None = None) -> OpenRaster:
    """Open a file through GDAL."""
    with ExitStack() as stack:
        datasets = Datasets(name, target, drivers, data)
        stack.callback(datasets.close)
        with datasets.dataset() as dataset:
            if not dataset.count:
                within = dataset.subdatasets
                images = f"{len(within)} images; give the name of one of them instead: {', '.join(within)}"
                raise InputError(f"{name} holds {images if within else 'no image'}")
            opened = OpenGdal(datasets, dataset)
        stack.pop_all()  # the raster closes them
        return opened


def open_raw(name: str, target: str, found: GdalFormat, nbytes: int) -> OpenRaster:
    """Open a file of ``nbytes`` by the header that lies beside it, which may be that of another file of its name."""
    opened = open_gdal(name, target, found.drivers)
    needed = math.prod(opened.size) * opened.count * opened.dtype.itemsize
    if nbytes >= needed:
        return opened
    opened.close()
    raise InputError(
        f"{name} has {nbytes} bytes, and the header beside it, of {found.words}, says {opened.size[0]} x"
        f" {opened.size[1]} pixels of {opened.count} bands, {needed} bytes; fetch the file anew if it is cut short, or"
        " give it a header of its own"
    )


def open_gdal_name(name: str) -> OpenRaster:
    """Open one of GDAL's names, as `is_gdal_name` tells them."""
    target, drivers = gdal_target(name)
    return open_gdal(name, target, drivers)


def gdal_files(name: str) -> list[Path]:
    """The files on this machine that GDAL reads for a path or one of its names; none where it cannot open it."""
    target, drivers = gdal_target(name)
    try:
        with closing(Datasets(name, target, drivers)) as datasets, datasets.dataset() as dataset:
            return [Path(file) for file in dataset.files]
    except InputError:  # raised again where it is read
        return []


class OpenGdal(OpenSegments):
    """A raster that GDAL reads.

    It is read in parts of whole blocks of GDAL's, each part once in a call, so that nothing hangs on what GDAL has in
    its cache. Of a VRT the blocks of its sources are not known: one that lies in several parts is decoded for each.
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
        heights, widths = zip(*dataset.block_shapes, strict=True)  # of all bands
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
        """How often GDAL was asked for each part, [rows, columns] in one row, then for the mask of each."""
        return self._decoded.ravel()

    def close(self) -> None:
        """Let the file go; any number of times."""
        super().close()
        self._datasets.close()

    def _images(self, windows: Sequence[Window], places: Sequence[int]) -> Generator[NDArray[Any], None, None]:
        parts = GdalParts(self, self._datasets, places, self._decoded[0], masks=False)
        return read_windows(parts, windows, range(len(places)))

    def _masks(self, windows: Sequence[Window], places: Sequence[int]) -> Generator[NDArray[Any], None, None] | None:
        if self._validity not in ("dataset", "bands"):
            return None
        said_by = [0] if self._validity == "dataset" else [band for band in places if band + 1 != self.alpha]
        return read_windows(GdalParts(self, self._datasets, said_by, self._decoded[1], masks=True), windows, [0])


def _dtype(text: str) -> np.dtype[Any]:
    """Integers that are complex are read as floats that are: numpy has none."""
    return np.dtype("complex64" if text.startswith("complex_int") else text)


def _palette(dataset: Any) -> NDArray[np.uint8] | None:
    """Return the palette of the first band as `OpenRaster.palette`, None where it has none."""
    if dataset.colorinterp[0].name != "palette" or not dataset.dtypes[0].startswith("uint"):
        return None
    return colours_of_palette(dataset.colormap(1))


def _validity(dataset: Any, alpha: int | None) -> _Validity:
    """Where it stands which pixels are valid (GDAL's RFC 15)."""
    data = [band for band in dataset.indexes if band != alpha]
    flags = [{flag.name for flag in dataset.mask_flag_enums[band - 1]} for band in data]
    if alpha is None:  # what GDAL takes for alpha may be described as something else
        flags = [said for said in flags if "alpha" not in said]
    if alpha is not None and not any("per_dataset" in said and "alpha" not in said for said in flags):
        return "alpha"
    if any("per_dataset" in said for said in flags):
        return "dataset"
    nodata = {repr(dataset.nodatavals[band - 1]) for band in data}
    if len(nodata) > 1 or not all(said & {"all_valid", "nodata"} for said in flags):
        return "bands"
    return "values"


_LARGEST = 512 << 20
"""Bytes of a part, decoded, above which it is refused: it has to be in memory as a whole."""
_WORTH_A_CALL = 2**18
"""Bytes, decoded, that are worth a call of GDAL."""
_SIDE = 1024
"""Pixels that a part of a VRT may have either way."""
_WORTH_A_SEARCH = 32 << 20
"""Bytes, decoded, up to which a part of a VRT grows."""


def part_size(driver: str, block: tuple[int, int], size: tuple[int, int], pixel: int) -> tuple[int, int]:
    """Height and width of the parts in which to read a raster.

    They are GDAL's blocks; several rows of them where a block is small, as of formats that are decoded row by row. Of a
    VRT they are larger: its blocks say nothing of those of its sources, each of which is decoded for every part that
    has some of it.
    """
    height, width = block
    if driver == "VRT":
        side = min(_SIDE, max(1, math.isqrt(_WORTH_A_SEARCH // pixel)))
        height *= max(1, side // height)
        width *= max(1, side // width)
    height *= max(1, _WORTH_A_CALL // (height * width * pixel))
    return min(height, size[0]), min(width, size[1])


class GdalParts:
    """Some bands of a raster, or, as one band of bool, whether all of them are valid: parts that `read_windows` reads.

    ``decoded``, [rows, columns] of parts, counts how often each was read.
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
        """Where a part lies."""
        return Window.of_block(*place[1:], self.block, self._raster.size)

    def read(self, places: Sequence[Place]) -> Sequence[memoryview | None]:
        """Nothing yet: GDAL reads and decodes in one."""
        return [memoryview(b"")] * len(places)

    def decode(self, place: Place, data: memoryview) -> NDArray[Any]:
        """The pixels [rows, columns, bands] of a part."""
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
        # rasterio reads several bands at once only where they are of one dtype
        return np.stack([dataset.read(band, window=slices, out_dtype=self.dtype.name) for band in self._bands])
