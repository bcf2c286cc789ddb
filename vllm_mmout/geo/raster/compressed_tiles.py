"""Write a cloud-optimised GeoTIFF of class ids. Threads compress its tiles while further blocks of pixels arrive.

GDAL writes the header, as that of an empty, sparse COG with the same metadata. The compressed tiles follow, and their
offsets are filled in. The file equals the one that GDAL's COG driver makes of all pixels
(https://gdal.org/drivers/raster/cog.html). That driver would take ten times as long after the last block.
"""

from __future__ import annotations

import tempfile
import threading
from collections import deque
from collections.abc import Iterable
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
from vllm_mmout.geo.raster.pyramid_level import PyramidLevel

_THREADS = max(2, THREADS // 2)
"""Number of threads that compress the tiles of a raster. It is half the number of threads that decode the input, since
decoding takes several times as long."""
_BATCH = 4
"""Number of tiles that a thread compresses before it looks for further work."""
_QUEUED_BYTES = 32 << 20
"""Largest total size in bytes of the tiles that wait to be compressed. Two batches of tiles may always wait, whatever
their size."""
_AROUND = 4
"""Number of bytes that GDAL writes before each tile of a COG, and again after the tile. The first 4 bytes hold the
tile's size, and the last 4 bytes repeat the end of the tile."""

_ENTRY_BYTES = 4
"""Largest size in bytes of a value that fits into an entry of a TIFF directory. For a longer value, the entry holds an
offset instead."""
_NEAREST = {"RESAMPLING": "NEAREST"}
"""GDAL metadata item for each overview band. Because of this item, GDAL 3.12 writes OVERVIEW_RESAMPLING=NEAREST into
the file."""


def compresses_at_once(dtype: np.dtype[Any], *, classes: bool) -> bool:
    """Return whether `CompressedTiles` can compress tiles as soon as they arrive.

    The pixels must be class ids of at most 16 bits.

    Overviews of class ids take the nearest pixel. The pixels of each value are counted for the statistics, so there
    must be few values.
    """
    return classes and dtype.itemsize <= 2


class CompressedTiles:
    """Writer of a GeoTIFF of class ids that compresses tiles and overviews while further blocks of pixels arrive.

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
        self._levels = [PyramidLevel(size, self._side, source) for size, source in zip(sizes, below, strict=True)]
        self._counts = np.zeros((shape[0], 2 ** (8 * self._dtype.itemsize)), np.int64)
        self._lock = threading.RLock()  # garbage collection may call `discard` in a thread that holds it
        file = BytesIO() if folder is None else tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - `discard` closes it
        self._file = cast("BinaryIO", file)
        self._end = 0
        self._batch: list[tuple[tuple[int, int], NDArray[Any]]] = []
        """Tiles that are not sent to a thread for compression yet, each as ((row, column) of the tile, pixels)."""
        self._jobs: deque[Future[None]] = deque()
        self._pool = ThreadPoolExecutor(_THREADS, "mmout-compress") if self._levels[1:] else None

    def write(self, row: int, col: int, pixels: NDArray[Any]) -> None:
        """Add a block of pixels [bands, height, width] whose upper left pixel is at ``row`` and ``col`` of the raster.

        The pixels must not change afterwards, since threads may still read them. An error of a thread is raised by a
        later call.
        """
        place = row // self._side, col // self._side
        if self._pool is None:
            self._add_tile(0, place, pixels)
            return
        self._batch.append((place, pixels))
        if len(self._batch) == _BATCH:
            self._submit(self._pool)

    def _submit(self, pool: ThreadPoolExecutor) -> None:
        """Have a thread compress the tiles that were collected since the last call."""
        batch_bytes = _BATCH * self.shape[0] * self._side**2 * self._dtype.itemsize
        while len(self._jobs) >= max(2, min(2 * _THREADS, _QUEUED_BYTES // batch_bytes)):
            self._jobs.popleft().result()
        batch, self._batch = self._batch, []
        self._jobs.append(pool.submit(self._add_tiles, batch))

    def save(self, target: str | BinaryIO, metadata: RasterMetadata) -> None:
        """Write the finished GeoTIFF to a path or to an open file."""
        if isinstance(target, str):
            with Path(target).open("wb") as file:
                self.save(file, metadata)
            return
        source_xml(None, self.shape, self._dtype, metadata)  # raises if the metadata does not fit
        if self._pool is not None:
            self._submit(self._pool)
        while self._jobs:
            self._jobs.popleft().result()
        target.write(self._completed(*self._header(metadata)))
        for level in reversed(self._levels):
            for start, size in zip(level.starts.ravel().tolist(), level.sizes.ravel().tolist(), strict=True):
                self._file.seek(start)
                target.write(self._file.read(size + 2 * _AROUND))

    def discard(self) -> None:
        """Delete the temporary file with the tiles. May be called repeatedly."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._batch.clear()
        with self._lock, suppress(OSError):  # of a full disk, which was raised before
            self._file.close()

    def _add_tiles(self, batch: Iterable[tuple[tuple[int, int], NDArray[Any]]]) -> None:
        for place, pixels in batch:
            self._add_tile(0, place, pixels)

    def _add_tile(self, number: int, place: tuple[int, int], pixels: NDArray[Any]) -> None:
        """Compress and store a tile, and all overview tiles that it completes.

        Args:
            number: index of the level: 0 is the full image, 1 the finest overview.
            place: row and column of the tile in its level.
            pixels: pixels of the tile [bands, height, width].

        """
        pixels = np.ascontiguousarray(pixels, self._dtype)
        if number == 0:
            with self._lock:
                seen = [np.flatnonzero(counts).tolist() for counts in self._counts]
            histograms = [histogram(plane, likely) for plane, likely in zip(pixels, seen, strict=True)]
            with self._lock:
                for band, found in enumerate(histograms):
                    self._counts[band] += found
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
        tile = pixels.reshape(height, width, 1) if bands == 1 else pixels.transpose(1, 2, 0)
        if (height, width) != (self._side, self._side):
            padded = np.zeros((self._side, self._side, bands), self._dtype)
            padded[:height, :width] = tile
            tile = padded
        stored: Any = imagecodecs.delta_encode(np.ascontiguousarray(tile), axis=-2)
        return bytes(imagecodecs.deflate_encode(stored, level=self._effort))

    def _header(self, metadata: RasterMetadata) -> tuple[BytesIO, bytes | None]:
        """Return the header of the final GeoTIFF: a file without pixels that GDAL writes with ``metadata``.

        GDAL checks every pixel for nodata, which takes six times as long if the nodata value is not 0. If the final
        value is short enough for its entry in the header, the header is therefore written with nodata 0, and the final
        value is returned too, to be filled in later.
        """
        from rasterio.io import MemoryFile
        from rasterio.shutil import copy

        statistics = histogram_statistics(self._counts, self._dtype, metadata.get("nodata"))
        final_nodata = _short_nodata(metadata.get("nodata"), self._dtype)
        if final_nodata is not None:
            metadata = {**metadata, "nodata": 0}
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
        return file, final_nodata

    def _completed(self, header_file: BytesIO, final_nodata: bytes | None) -> bytes:
        """Return the header with the offsets of all tiles filled in. Also fill in ``final_nodata`` if it is not None.

        The tiles follow the header, smallest overview first.
        """
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
            if final_nodata is not None:
                tag = page.tags["GDAL_NODATA"]
                header[tag.offset + 4] = len(final_nodata)  # number of characters
                header[tag.valueoffset : tag.valueoffset + len(final_nodata)] = final_nodata
        return bytes(header)


def _short_nodata(nodata: float | None, dtype: np.dtype[Any]) -> bytes | None:
    """Return the text that GeoTIFF stores for a nodata value. Return None if the text is longer than 4 bytes.

    The text ends with a NUL byte. Also return None for the nodata value 0, which a header can hold from the start, and
    for int8, because tifffile warns of the nodata value 0 there.
    """
    if not nodata or dtype == np.int8:
        return None
    stored = f"{nodata:.17g}\0".encode()
    return stored if len(stored) <= _ENTRY_BYTES else None
