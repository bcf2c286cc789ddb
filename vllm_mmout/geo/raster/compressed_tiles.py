"""Write a cloud-optimised GeoTIFF of class ids. Threads compress its tiles as soon as blocks of pixels arrive.

GDAL writes the header, as that of an empty, sparse COG with the same metadata. The compressed tiles follow, and their
offsets are filled in. The file equals the one that GDAL's COG driver makes of all pixels
(https://gdal.org/drivers/raster/cog.html). That driver would take ten times as long after the last block.
"""

from __future__ import annotations

import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, cast

import imagecodecs
import numpy as np
from numpy.typing import NDArray
from tifffile import TiffFile

from vllm_mmout.geo.raster.band_statistics import histogram, histogram_statistics
from vllm_mmout.geo.raster.files import THREADS
from vllm_mmout.geo.raster.gdal_writing import gdal_writes
from vllm_mmout.geo.raster.geotiff import (
    RasterMetadata,
    cog_options,
    overview_sizes,
    restore_names,
    source_xml,
    stored_dtype,
)

_AROUND = 4
"""Number of bytes that GDAL adds before each tile of a COG (the tile's size) and after it (a copy of the tile's last
bytes)."""

_NEAREST = {"RESAMPLING": "NEAREST"}
"""GDAL metadata item of each overview band. It states that the band was made by nearest-neighbour resampling, and makes
GDAL 3.12 write OVERVIEW_RESAMPLING=NEAREST into the file, as GDAL's COG driver does."""


def compresses_at_once(dtype: np.dtype[Any], *, classes: bool) -> bool:
    """Return whether `CompressedTiles` supports a raster. It must hold class ids of at most 16 bits.

    Overviews of class ids take the nearest pixel. The pixels of each value are counted for the statistics, so there
    must be few values.
    """
    return classes and dtype.itemsize <= 2


class CompressedTiles:
    """Writer of a GeoTIFF of class ids that compresses tiles and overviews as soon as blocks of pixels arrive.

    Memory holds the blocks that threads compress, and the unfinished tiles of overviews. If blocks arrive row by row,
    these tiles need at most the bytes of a row of blocks. One thread at a time may use the object.
    """

    def __init__(self, folder: Path | None, shape: tuple[int, int, int], dtype: np.dtype[Any]) -> None:
        """Create a writer for a raster of ``shape`` (bands, height, width). Without a folder, it keeps tiles in memory.

        ``dtype`` is the dtype of the pixels before `stored_dtype`.
        """
        self.shape = shape
        self._given, self._dtype = dtype, stored_dtype(dtype)
        options = cog_options(shape, dtype, {})
        self._side, self._effort = int(options["BLOCKSIZE"]), int(options["LEVEL"])
        sizes = [shape[1:], *overview_sizes(shape[1:])]
        below = [shape[1:], *sizes[:-1]]
        self._levels = [_PyramidLevel(size, self._side, source) for size, source in zip(sizes, below, strict=True)]
        self._counts = np.zeros((shape[0], 2 ** (8 * self._dtype.itemsize)), np.int64)
        self._lock = threading.RLock()  # garbage collection may call `discard` in a thread that holds it
        file = BytesIO() if folder is None else tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - `discard` closes it
        self._file = cast("BinaryIO", file)
        self._end = 0
        self._jobs: deque[Future[None]] = deque()
        self._pool = ThreadPoolExecutor(THREADS, "mmout-compress") if self._levels[1:] else None

    def write(self, row: int, col: int, pixels: NDArray[Any]) -> None:
        """Add a block of pixels [bands, height, width] whose upper left pixel is at ``row`` and ``col`` of the raster.

        An error of a thread is raised by a later call.
        """
        place = row // self._side, col // self._side
        if self._pool is None:
            self._add_tile(0, place, pixels.astype(self._dtype, copy=False))
            return
        while len(self._jobs) >= 2 * THREADS:
            self._jobs.popleft().result()
        self._jobs.append(self._pool.submit(self._add_tile, 0, place, pixels.astype(self._dtype)))

    def save(self, target: str | BinaryIO, metadata: RasterMetadata) -> None:
        """Write the finished GeoTIFF to a path or to an open file."""
        if isinstance(target, str):
            with Path(target).open("wb") as file:
                self.save(file, metadata)
            return
        source_xml(None, self.shape, self._dtype, metadata)  # raises if the metadata does not fit
        while self._jobs:
            self._jobs.popleft().result()
        target.write(self._with_tile_places(self._header(metadata)))
        for level in reversed(self._levels):
            for start, size in zip(level.starts.ravel().tolist(), level.sizes.ravel().tolist(), strict=True):
                self._file.seek(start)
                target.write(self._file.read(size + 2 * _AROUND))

    def discard(self) -> None:
        """Delete the temporary file with the tiles. May be called repeatedly."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock, suppress(OSError):  # of a full disk, which was raised before
            self._file.close()

    def _add_tile(self, number: int, place: tuple[int, int], pixels: NDArray[Any]) -> None:
        """Compress and store a tile, and all overview tiles that it completes.

        Args:
            number: index of the level: 0 is the full image, 1 the finest overview.
            place: row and column of the tile in its level.
            pixels: pixels of the tile [bands, height, width].

        """
        if number == 0:
            counts = np.stack([histogram(plane) for plane in pixels])
            with self._lock:
                self._counts += counts
        data = self._compressed(pixels)
        record = len(data).to_bytes(_AROUND, "little") + data + data[-_AROUND:]
        level = self._levels[number]
        with self._lock:
            level.starts[place], level.sizes[place] = self._end, len(data)
            self._file.write(record)
            self._end += len(record)
        if number + 1 < len(self._levels):
            above = self._levels[number + 1]
            for tile, there, nearest in above.tiles_to_fill(place, pixels):
                with self._lock:
                    complete = above.paint(tile, there, nearest)
                if complete is not None:
                    self._add_tile(number + 1, tile, complete)

    def _compressed(self, pixels: NDArray[Any]) -> bytes:
        """Pad a tile to its full size, and compress it with deflate and TIFF's horizontal differences."""
        bands, height, width = pixels.shape
        tile = np.zeros((self._side, self._side, bands), self._dtype)
        tile[:height, :width] = pixels.transpose(1, 2, 0)
        differences = tile.copy()
        differences[:, 1:] -= tile[:, :-1]
        stored: Any = differences
        return bytes(imagecodecs.deflate_encode(stored, level=self._effort))

    def _header(self, metadata: RasterMetadata) -> BytesIO:
        """Return the header of the final GeoTIFF: a file without pixels that GDAL writes with ``metadata``."""
        from rasterio.io import MemoryFile
        from rasterio.shutil import copy

        statistics = histogram_statistics(self._counts, self._dtype, metadata.get("nodata"))
        sizes = [level.size for level in self._levels]
        options = {**cog_options(self.shape, self._given, metadata), "SPARSE_OK": "YES"}
        with MemoryFile() as memory, ExitStack() as stack:
            overviews = []
            nodata: RasterMetadata = {"nodata": metadata.get("nodata")}
            for size in sizes[1:]:
                shape = self.shape[0], *size
                xml = source_xml(None, shape, self._dtype, nodata, items_of_bands=[_NEAREST] * len(statistics))
                overviews.append(stack.enter_context(MemoryFile(xml.encode(), ext=".vrt")).name)
            xml = source_xml(None, self.shape, self._dtype, metadata, items_of_bands=statistics, overviews=overviews)
            with gdal_writes(memory.name):
                copy(xml, memory.name, driver="COG", **options)
            file = BytesIO(memory.getbuffer())
        restore_names(file, metadata)
        file.seek(0)
        return file

    def _with_tile_places(self, header_file: BytesIO) -> bytes:
        """Return the header with the offsets of all tiles. The tiles follow the header, smallest overview first."""
        header = bytearray(header_file.getbuffer())
        with TiffFile(header_file) as tiff:
            pages: list[Any] = list(tiff.pages)
        sizes = [(page.imagelength, page.imagewidth) for page in pages]
        if sizes != (expected := [level.size for level in self._levels]):
            raise RuntimeError(f"GDAL's header has images of {sizes}, expected {expected}")
        end = len(header)
        for page, level in reversed(list(zip(pages, self._levels, strict=True))):
            lengths = level.sizes.ravel() + 2 * _AROUND
            starts = end + np.cumsum(lengths) - lengths
            end += int(lengths.sum())
            for name, values in (("TileOffsets", starts + _AROUND), ("TileByteCounts", level.sizes.ravel())):
                tag = page.tags[name]
                stored = values.astype({4: "<u4", 16: "<u8"}[tag.dtype]).tobytes()
                header[tag.valueoffset : tag.valueoffset + len(stored)] = stored
        return bytes(header)


class _PyramidLevel:
    """Full image or overview of a GeoTIFF. It holds unfinished tiles, and the file offsets of finished tiles."""

    def __init__(self, size: tuple[int, int], tile_side: int, finer_size: tuple[int, int]) -> None:
        """Create a level of an image pyramid. ``finer_size`` (height, width) is the size of the next finer level."""
        self.size = size
        self._side = tile_side
        self.starts = np.zeros([-(-length // tile_side) for length in size], np.int64)
        self.sizes = np.zeros_like(self.starts)
        self._unfinished: dict[tuple[int, int], tuple[NDArray[Any], int]] = {}
        """Maps (row, column) of each unfinished tile to its pixels so far and its number of missing pixels."""
        self._nearest = [_nearest(*lengths) for lengths in zip(size, finer_size, strict=True)]
        """Row indices and column indices of the pixels that this overview takes from the next finer level of the image
        pyramid."""

    def tiles_to_fill(
        self, finer_tile: tuple[int, int], pixels: NDArray[Any]
    ) -> Iterator[tuple[tuple[int, int], tuple[slice, slice], NDArray[Any]]]:
        """Yield the tiles of this overview that need pixels of ``finer_tile``, a tile of the next finer pyramid level.

        Each item is the position of the tile, the slices of the tile to fill, and the pixels for them.
        """
        rows, cols = (list(self._along(*axis)) for axis in zip(self._nearest, finer_tile, strict=True))
        for row, there_rows, from_rows in rows:
            for col, there_cols, from_cols in cols:
                yield (row, col), (there_rows, there_cols), pixels[:, from_rows][:, :, from_cols]

    def paint(self, tile: tuple[int, int], slices: tuple[slice, slice], pixels: NDArray[Any]) -> NDArray[Any] | None:
        """Write pixels into ``slices`` of a tile. Return all pixels of the tile if it is now complete, else None."""
        if tile not in self._unfinished:
            shape = [min(self._side, length - at * self._side) for length, at in zip(self.size, tile, strict=True)]
            self._unfinished[tile] = np.empty((len(pixels), *shape), pixels.dtype), shape[0] * shape[1]
        whole, missing = self._unfinished.pop(tile)
        whole[:, *slices] = pixels
        missing -= pixels[0].size
        if not missing:
            return whole
        self._unfinished[tile] = whole, missing
        return None

    def _along(self, nearest: NDArray[np.intp], finer_tile: int) -> Iterator[tuple[int, slice, NDArray[np.intp]]]:
        """Yield, along one axis, the tiles of this overview that copy pixels from one tile of the next finer level.

        ``finer_tile`` is the index of the finer tile. Each item is the index of the tile, the slice to fill in it, and
        the index in the finer tile of each pixel to copy.
        """
        first, last = np.searchsorted(nearest, (finer_tile * self._side, (finer_tile + 1) * self._side)).tolist()
        while first < last:
            tile = first // self._side
            end = min(last, (tile + 1) * self._side)
            there = slice(first - tile * self._side, end - tile * self._side)
            yield tile, there, nearest[first:end] - finer_tile * self._side
            first = end


def _nearest(length: int, source_length: int) -> NDArray[np.intp]:
    """Return the index of the source pixel that GDAL copies to each of ``length`` overview pixels along an axis."""
    return (0.5 + np.arange(length) * (source_length / length)).astype(np.intp)
