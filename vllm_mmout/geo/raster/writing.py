"""Write cloud-optimised GeoTIFFs through GDAL, from a whole array or block by block."""

from __future__ import annotations

import os
import secrets
import tempfile
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
from vllm_mmout.geo.raster.compressed_tiles import CompressedTiles, compresses_at_once
from vllm_mmout.geo.raster.geotiff import RasterMetadata, are_classes, block_limit, restore_names, stored_dtype
from vllm_mmout.geo.raster.pixels_file import PixelsFile
from vllm_mmout.stopwatch import FILES


class GeoTiffBlocks:
    """Writer of a cloud-optimised GeoTIFF that takes the pixels block by block, in any order.

    Blocks go to a temporary file in ``folder`` (None: the system's temporary folder). `finish` makes the GeoTIFF from
    it, with overviews and statistics. The temporary file is removed with this object, or when the process ends
    normally. Only one thread at a time may use the object. bool is stored as uint8.

    ``classes`` must be True if the pixels are class numbers (see `are_classes`). Threads compress classes of up to 16
    bits while further blocks arrive, which makes `finish` quick.
    """

    def __init__(
        self, folder: Path | None, *, bands: int, height: int, width: int, dtype: DTypeLike, classes: bool = False
    ) -> None:
        self.folder = Path(tempfile.gettempdir()) if folder is None else folder
        self.shape = (bands, height, width)
        """Bands, height and width of the raster."""
        self.dtype = stored_dtype(dtype)
        """Dtype of the pixels in the file: the dtype that was given, except that bool is stored as uint8."""
        if min(self.shape) < 1:
            raise SaveError(f"a GeoTIFF takes a raster that is not empty, got {bands} x {height} x {width}")
        self._given = np.dtype(dtype)
        self._classes = classes or are_classes(self._given)
        self.block = block_limit(bands)
        """Rows and columns of a block in pixels. Blocks at the lower and right edges of the raster may be smaller."""
        self._grid = (-(-height // self.block), -(-width // self.block))
        self._written: set[tuple[int, int]] = set()
        self._path = self.folder.absolute() / f".mmout-raster.{secrets.token_hex(8)}.part"
        with self._writing():
            self._pixels = _open_store(self._path, self.shape, self._given, classes=self._classes)
        self._forget = weakref.finalize(self, _remove, self._pixels, self._path, os.getpid())

    def write(self, row: int, col: int, pixels: NDArray[Any], *, copy: bool = True) -> None:
        """Write the pixels [bands, height, width] of a block. ``row`` and ``col`` count blocks, not pixels, from 0.

        If ``copy`` is False, the pixels must not change afterwards, since threads may still read them. A block that
        does not fit or was written before raises SaveError. So does a full disk, after which all blocks are discarded.
        """
        self._check(row, col, pixels)
        if copy and isinstance(self._pixels, CompressedTiles):
            pixels = pixels.copy()
        watch = FILES.get()
        with self._discarding(), self._writing(), nullcontext() if watch is None else watch.running():
            self._pixels.write(row * self.block, col * self.block, pixels)
        self._written.add((row, col))

    def finish(self, **metadata: Unpack[RasterMetadata]) -> Path:
        """Write the GeoTIFF from all blocks under a temporary name. Return the path of the GeoTIFF.

        The GeoTIFF is in the folder ``folder``. The caller must rename the file.
        """
        if not self._forget.alive:
            raise SaveError("the raster was finished or discarded before")
        rows, cols = self._grid
        with self._discarding(), self._writing():
            for place in product(range(rows), range(cols)):
                if place not in self._written:
                    raise SaveError(f"block {place} was never written, of {rows} x {cols} blocks")
            if are_classes(self._given, metadata.get("class_names"), metadata.get("palette")) != self._classes:
                raise SaveError(
                    f"the raster was begun with classes={self._classes}, and its metadata says the opposite (classes"
                    " are bool, or integers with class_names or a palette); make both the same"
                )
            self._pixels.save(_create_private(self._path), metadata)
            self._pixels.discard()
        self._forget.detach()
        return self._path

    def discard(self) -> None:
        """Delete all files written so far, including the finished GeoTIFF. May be called repeatedly."""
        self._forget.detach()
        _remove(self._pixels, self._path, os.getpid())

    def _check(self, row: int, col: int, pixels: NDArray[Any]) -> None:
        (rows, cols), (bands, height, width), side = self._grid, self.shape, self.block
        if not self._forget.alive:
            raise SaveError(f"block ({row}, {col}) comes after the raster was finished or discarded")
        if not (0 <= row < rows and 0 <= col < cols):
            raise SaveError(f"there is no block ({row}, {col}), of {rows} x {cols} blocks")
        expected = (bands, min(side, height - row * side), min(side, width - col * side))
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
    one has at most 512 pixels. Above 16 bands tiles are smaller (see `block_limit`). A file appears under its path only
    once it is complete; after an error there is no file.

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

    pixels = _checked(array)
    if compresses_at_once(pixels.dtype, classes=_has_classes(pixels, metadata)):
        tiles = CompressedTiles(None, pixels.shape, pixels.dtype)
        with _pixels_written(tiles, pixels):
            tiles.save(target, metadata)
        return
    with MemoryFile() as memory, MemoryFile() as cog:
        file = PixelsFile(memory.name, pixels.shape, pixels.dtype)
        with _pixels_written(file, pixels):
            file.save(cog.name, metadata)
        written = BytesIO(cog.getbuffer())
    restore_names(written, metadata)
    target.write(written.getbuffer())


def write_geotiff_here(path: Path, array: NDArray[Any], **metadata: Unpack[RasterMetadata]) -> None:
    """Write a GeoTIFF directly to ``path``. After an error the caller must remove the incomplete file."""
    pixels = _checked(array)
    store = _open_store(path.absolute(), pixels.shape, pixels.dtype, classes=_has_classes(pixels, metadata))
    with _pixels_written(store, pixels):
        store.save(str(path.absolute()), metadata)


def _checked(array: NDArray[Any]) -> np.ndarray[tuple[int, int, int], np.dtype[Any]]:
    whole = np.asarray(array)
    if whole.ndim != 3 or 0 in whole.shape:
        raise SaveError(f"a GeoTIFF takes an array [bands, height, width] that is not empty, got shape {whole.shape}")
    return whole


def _has_classes(pixels: NDArray[Any], metadata: RasterMetadata) -> bool:
    return are_classes(pixels.dtype, metadata.get("class_names"), metadata.get("palette"))


def _open_store(
    target: Path, shape: tuple[int, int, int], dtype: np.dtype[Any], *, classes: bool
) -> CompressedTiles | PixelsFile:
    """Create the temporary file that collects the pixels of a raster before the GeoTIFF ``target`` is written."""
    if compresses_at_once(dtype, classes=classes):
        return CompressedTiles(target.parent, shape, dtype)
    name = _create_private(target.with_suffix(".pixels.part"))
    try:
        return PixelsFile(name, shape, dtype)
    except BaseException:
        Path(name).unlink()
        raise


@contextmanager
def _pixels_written(store: CompressedTiles | PixelsFile, pixels: NDArray[Any]) -> Iterator[None]:
    """Write all pixels [bands, height, width] to the temporary storage ``store``.

    Delete the temporary storage when the ``with`` block ends.
    """
    try:
        side = block_limit(len(pixels))
        for row, col in product(range(0, pixels.shape[1], side), range(0, pixels.shape[2], side)):
            store.write(row, col, pixels[:, row : row + side, col : col + side])
        yield
    finally:
        store.discard()


def _create_private(path: Path) -> str:
    """Create an empty file that other users cannot read, even in a shared folder. Return its path as text."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    return str(path)


def _remove(store: CompressedTiles | PixelsFile, path: Path, process: int) -> None:
    """Delete a raster's files, but only in the process with the id ``process``, which created the files.

    A fork of that process does not delete the files.
    """
    if os.getpid() == process:
        store.discard()
        with suppress(OSError):
            path.unlink(missing_ok=True)
