"""Writing cloud-optimised GeoTIFFs through GDAL, from a whole array or block by block."""

from __future__ import annotations

import errno
import os
import secrets
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any, BinaryIO, Unpack

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vllm_mmout.errors import SaveError
from vllm_mmout.geo.raster.atomic import atomic_file
from vllm_mmout.geo.raster.geotiff import (
    BLOCK_SIDE,
    RasterMetadata,
    block_side,
    cog_options,
    is_whole,
    restore_names,
    source_xml,
    statistics,
    stored_dtype,
)
from vllm_mmout.stopwatch import FILES

_CACHE = 64 << 20
"""Size of GDAL's block cache in bytes while a COG is written. GDAL's default is 5 % of the machine's memory."""
_CACHES: list[int] = []
"""GDAL's cache size before each unfinished COG was begun, oldest first. The first entry is the size to restore."""
_CACHING = threading.Lock()
_OPTIONS = {"GDAL_NUM_THREADS": "1", "COG_TMP_COMPRESSION": "PACKBITS"}
"""GDAL options: this package starts the threads itself, and temporary overviews need only the cheapest compression."""
_IN_MEMORY = "/vsimem/"
"""Prefix of GDAL's names of files in memory."""


class GeoTiffBlocks:
    """A writer of a cloud-optimised GeoTIFF that takes the pixels block by block, in any order.

    Each block is written at once to a temporary file in ``folder`` (None: the system's temporary folder). `finish`
    makes the GeoTIFF from it, with overviews and statistics. The temporary file is removed with this object, or when
    the process ends normally. Only one thread at a time may use the object. bool is stored as uint8.
    """

    block: int = BLOCK_SIDE
    """Rows and columns of a block, in pixels. Blocks at the lower and right edges end at the raster's edge."""

    def __init__(self, folder: Path | None, *, bands: int, height: int, width: int, dtype: DTypeLike) -> None:
        self.folder = Path(tempfile.gettempdir()) if folder is None else folder
        self.shape = (bands, height, width)
        """Bands, height and width of the raster."""
        self.dtype = stored_dtype(dtype)
        """Dtype of the stored pixels."""
        if min(self.shape) < 1:
            raise SaveError(f"a GeoTIFF takes a raster that is not empty, got {bands} x {height} x {width}")
        self._given = np.dtype(dtype)
        self._grid = (-(-height // BLOCK_SIDE), -(-width // BLOCK_SIDE))
        self._written: set[tuple[int, int]] = set()
        self._path = self.folder.absolute() / f".mmout-raster.{secrets.token_hex(8)}.part"
        with self._writing():
            self._pixels = PixelsFile(_private(self._path.with_suffix(".pixels.part")), self.shape, self.dtype)
        self._forget = weakref.finalize(self, _remove, self._pixels, self._path, os.getpid())

    def write(self, row: int, col: int, pixels: NDArray[Any]) -> None:
        """Write a block's pixels [bands, height, width], clipped at the raster's edges.

        ``row`` and ``col`` count blocks from 0. A block that does not fit or was written before raises SaveError. So
        does a full disk, after which all blocks are discarded.
        """
        self._check(row, col, pixels)
        watch = FILES.get()
        with self._discarding(), self._writing(), nullcontext() if watch is None else watch.running():
            self._pixels.write(row * BLOCK_SIDE, col * BLOCK_SIDE, pixels)
        self._written.add((row, col))

    def finish(self, **metadata: Unpack[RasterMetadata]) -> Path:
        """Make the GeoTIFF in the folder and return its path, for the caller to move. An error leaves no file."""
        if not self._forget.alive:
            raise SaveError("the raster was finished or discarded before")
        rows, cols = self._grid
        with self._discarding(), self._writing():
            for place in product(range(rows), range(cols)):
                if place not in self._written:
                    raise SaveError(f"block {place} was never written, of {rows} x {cols} blocks")
            self._pixels.save(_private(self._path), self._given, metadata)
            Path(self._pixels.name).unlink()
        self._forget.detach()
        return self._path

    def discard(self) -> None:
        """Remove all written files, also the finished one. May be called repeatedly."""
        self._forget.detach()
        _remove(self._pixels, self._path, os.getpid())

    def _check(self, row: int, col: int, pixels: NDArray[Any]) -> None:
        (rows, cols), (bands, height, width) = self._grid, self.shape
        if not self._forget.alive:
            raise SaveError(f"block ({row}, {col}) comes after the raster was finished or discarded")
        if not (0 <= row < rows and 0 <= col < cols):
            raise SaveError(f"there is no block ({row}, {col}), of {rows} x {cols} blocks")
        expected = (bands, min(BLOCK_SIDE, height - row * BLOCK_SIDE), min(BLOCK_SIDE, width - col * BLOCK_SIDE))
        if pixels.shape != expected or stored_dtype(pixels.dtype) != self.dtype:
            raise SaveError(
                f"block ({row}, {col}) must be {self.dtype} {list(expected)}, got {pixels.dtype} {list(pixels.shape)}"
            )
        if (row, col) in self._written:
            raise SaveError(f"block ({row}, {col}) is written twice")

    @contextmanager
    def _discarding(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.discard()
            raise

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SaveError(
                f"cannot write to {self.folder}: {error.strerror or error}; make room there, or name another folder"
            ) from error


def write_geotiff(target: str | Path | BinaryIO, array: NDArray[Any], **metadata: Unpack[RasterMetadata]) -> None:
    """Write a cloud-optimised GeoTIFF with deflate compression, tiles, and statistics of each band.

    A raster larger than 512 pixels gets tiles of 512 x 512 and overviews, each half as large as the one before, until
    one fits into a tile. A file appears under its path only once it is complete; after an error there is no file.

    Args:
        target: path, or a file open for writing bytes.
        array: [bands, height, width] of bool (stored as uint8), integers or floating point.
        metadata: the raster's metadata, as keywords of `RasterMetadata`.

    Raises:
        SaveError: the array or its metadata does not fit a GeoTIFF, or the target cannot be written.
        InputError: the coordinate system of ``georeference`` cannot be written to a GeoTIFF.

    """
    if isinstance(target, str | Path):
        with atomic_file(target) as part:
            write_geotiff_here(part, array, **metadata)
        return
    from rasterio.io import MemoryFile

    with MemoryFile() as pixels, MemoryFile() as cog:
        _save(pixels.name, cog.name, array, metadata)
        file = BytesIO(cog.getbuffer())
    restore_names(file, metadata)
    target.write(file.getbuffer())


def write_geotiff_here(path: Path, array: NDArray[Any], **metadata: Unpack[RasterMetadata]) -> None:
    """Write a GeoTIFF directly under ``path``, so that an error may leave a partial file for the caller to remove."""
    pixels = _private(path.absolute().with_name(f"{path.name}.pixels"))
    try:
        _save(pixels, str(path.absolute()), array, metadata)
    finally:
        Path(pixels).unlink(missing_ok=True)


def _save(pixels: str, target: str, array: NDArray[Any], metadata: RasterMetadata) -> None:
    whole = np.asarray(array)
    if whole.ndim != 3 or 0 in whole.shape:
        raise SaveError(f"a GeoTIFF takes an array [bands, height, width] that is not empty, got shape {whole.shape}")
    bands, height, width = whole.shape
    file = PixelsFile(pixels, (bands, height, width), stored_dtype(whole.dtype))
    try:
        for row, col in product(range(0, height, BLOCK_SIDE), range(0, width, BLOCK_SIDE)):
            file.write(row, col, whole[:, row : row + BLOCK_SIDE, col : col + BLOCK_SIDE])
        file.save(target, whole.dtype, metadata)
    finally:
        file.close()


def _private(path: Path) -> str:
    """Create an empty file that only this user can read, since the folder may be shared, and return its name."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    return str(path)


def _remove(pixels: PixelsFile, path: Path, process: int) -> None:
    """Remove the files of a raster if this is the process that made them, since a fork holds the same objects."""
    if os.getpid() == process:
        pixels.close()
        for file in (Path(pixels.name), path):
            with suppress(OSError):
                file.unlink(missing_ok=True)


class PixelsFile:
    """A temporary GeoTIFF, on disk or in memory, that holds a raster's pixels. One thread at a time may use it."""

    def __init__(self, name: str, shape: tuple[int, int, int], dtype: np.dtype[Any]) -> None:
        import rasterio

        self.name = name
        self.shape = shape
        self.dtype = dtype
        self._kept = np.dtype(np.float32) if dtype == np.float16 else dtype
        side, (count, height, width) = block_side(shape[1:]), shape
        compression = {} if dtype.kind == "f" else {"compress": "zstd", "zstd_level": 1}  # floats hardly compress
        with _gdal(name):
            self._file = rasterio.open(
                name, "w", driver="GTiff", count=count, height=height, width=width, dtype=self._kept, tiled=True,
                blockxsize=side, blockysize=side, interleave="band", bigtiff="IF_SAFER", **compression,
                transform=rasterio.Affine.scale(2),  # rasterio warns without a transform
            )  # fmt: skip

    def write(self, row: int, col: int, pixels: NDArray[Any]) -> None:
        """Write pixels [bands, height, width] at a row and a column of the raster, in pixels."""
        window = ((row, row + pixels.shape[1]), (col, col + pixels.shape[2]))
        with _gdal(self.name, pixels.nbytes):
            self._file.write(pixels.astype(self._kept, copy=False), window=window)

    def save(self, target: str, dtype: np.dtype[Any], metadata: RasterMetadata) -> None:
        """Write all pixels to the COG ``target``. ``dtype`` is the dtype that the caller's pixels had, such as bool."""
        from rasterio.shutil import copy

        source_xml(self.name, self.shape, self.dtype, metadata)  # raises if the metadata does not fit
        on_disk = not target.startswith(_IN_MEMORY)
        nbytes = 2 * Path(self.name).stat().st_size if on_disk else 0
        with _gdal(target, nbytes), _small_cache():
            self.close()
            of_bands = statistics(self.name, self.dtype, metadata.get("nodata"))
            xml = source_xml(self.name, self.shape, self.dtype, metadata, of_bands)
            copy(xml, target, driver="COG", **cog_options(self.shape, dtype, metadata))
        if on_disk:
            if not is_whole(target):
                raise _system_error(target, nbytes, OSError("the end of the file is missing"))
            restore_names(target, metadata)

    def close(self) -> None:
        """Write pending pixels and close the file. May be called repeatedly."""
        self._file.close()


@contextmanager
def _small_cache() -> Iterator[None]:
    """Reduce GDAL's block cache while any thread writes a COG, and restore its size when the last thread is done."""
    from rasterio.env import get_gdal_config, set_gdal_config

    with _CACHING:
        _CACHES.append(get_gdal_config("GDAL_CACHEMAX"))
        set_gdal_config("GDAL_CACHEMAX", min(_CACHES[0], _CACHE))
    try:
        yield
    finally:
        with _CACHING:
            before = _CACHES[0]
            _CACHES.pop()
            if not _CACHES:
                set_gdal_config("GDAL_CACHEMAX", before)


@contextmanager
def _gdal(name: str, nbytes: int = 0) -> Iterator[None]:
    """Run GDAL code that adds up to ``nbytes`` bytes to the file ``name``, and turn GDAL's errors into OSError."""
    from rasterio import Env
    from rasterio._err import CPLE_BaseError
    from rasterio.errors import RasterioError
    from rasterio.session import DummySession

    try:
        with Env(session=DummySession(), **_OPTIONS):
            yield
    except (RasterioError, CPLE_BaseError) as error:
        raise _system_error(name, nbytes, error) from error


def _system_error(name: str, nbytes: int, error: BaseException) -> OSError:
    """Return the system's error if the file cannot grow by ``nbytes``, as on a full disk, else GDAL's message."""
    if sys.platform == "linux" and not name.startswith(_IN_MEMORY):
        path = Path(name)
        try:
            with tempfile.TemporaryFile(dir=path.parent) as file:
                os.posix_fallocate(file.fileno(), 0, nbytes + (path.stat().st_size if path.exists() else 0) + 1)
        except OSError as system_error:
            return system_error
    while error.__cause__ is not None:  # rasterio's message only refers to the cause
        error = error.__cause__
    return OSError(errno.EIO, f"GDAL says: {error}")
