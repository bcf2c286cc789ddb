"""Writing GeoTIFF: of a whole array, or block by block."""

from __future__ import annotations

import os
import secrets
import tempfile
import weakref
from contextlib import contextmanager, suppress
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Unpack

import numpy as np

from vllm_mmout.errors import SaveError
from vllm_mmout.geo.raster.cog import PixelsFile
from vllm_mmout.geo.raster.files import whole_file
from vllm_mmout.geo.raster.geotiff import BLOCK, Told, restore_names, stored_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import DTypeLike, NDArray


class GeoTiffBlocks:
    """A raster that becomes a cloud-optimised GeoTIFF while its pixels come, block by block in any order.

    Each block goes to a temporary file at once, of which `finish` makes the GeoTIFF, with overviews and statistics.
    The temporary file is gone with this object, or when the process ends normally. One thread at a time may use it.

    Args:
        folder: where the files lie while they are made; None for the system's folder for temporary files.
        bands: number of bands.
        height: rows of the raster.
        width: columns of the raster.
        dtype: of the pixels; bool is stored as uint8.

    Raises:
        SaveError: a GeoTIFF holds no such raster, or the folder cannot be written to.

    """

    block: int = BLOCK
    """Rows and columns of a block; those at the lower and the right edge end with the raster."""

    def __init__(self, folder: Path | None, *, bands: int, height: int, width: int, dtype: DTypeLike) -> None:
        self.folder = Path(tempfile.gettempdir()) if folder is None else folder
        self.shape = (bands, height, width)
        """Bands, height and width of the raster."""
        self.dtype = stored_dtype(dtype)
        """What pixels are stored as."""
        if min(self.shape) < 1:
            raise SaveError(f"a GeoTIFF takes a raster that is not empty, got {bands} x {height} x {width}")
        self._given = np.dtype(dtype)
        self._grid = (-(-height // BLOCK), -(-width // BLOCK))
        self._written: set[tuple[int, int]] = set()
        self._path = self.folder.absolute() / f".mmout-raster.{secrets.token_hex(8)}.part"
        with self._writing():
            self._pixels = PixelsFile(_private(self._path.with_suffix(".pixels.part")), self.shape, self.dtype)
        self._forget = weakref.finalize(self, _remove, self._pixels, self._path, os.getpid())

    def write(self, row: int, col: int, pixels: NDArray[Any]) -> None:
        """Write one block, all its bands.

        Args:
            row: number of the row of blocks, from 0.
            col: number of the column of blocks, from 0.
            pixels: [bands, height, width] of the raster's dtype, which is not changed; at the edges what is in the
                raster.

        Raises:
            SaveError: the disk is full, and all that was written is discarded; or the block has another place, shape
                or dtype than the raster says, or was written before, and may be written as it should be.

        """
        self._check(row, col, pixels)
        with self._discarding(), self._writing():
            self._pixels.write(row * BLOCK, col * BLOCK, pixels)
        self._written.add((row, col))

    def finish(self, **told: Unpack[Told]) -> Path:
        """Make the file of all blocks.

        Args:
            told: what is known of the raster.

        Returns:
            A new file in the folder, under a temporary name; it is the caller's from now on, to move or to remove.

        Raises:
            SaveError: a block was never written, something said about the raster does not fit a GeoTIFF, or the disk
                is full. Nothing is left on it then. Or it was finished or discarded before: a file that was made then
                stays.
            InputError: the coordinate system of ``georeference`` cannot be written to a GeoTIFF.

        """
        if not self._forget.alive:
            raise SaveError("the raster was finished or discarded before")
        rows, cols = self._grid
        with self._discarding(), self._writing():
            for place in product(range(rows), range(cols)):
                if place not in self._written:
                    raise SaveError(f"block {place} was never written, of {rows} x {cols} blocks")
            self._pixels.save(_private(self._path), self._given, told)
            Path(self._pixels.name).unlink()
        self._forget.detach()
        return self._path

    def discard(self) -> None:
        """Remove all that was written, the finished file too; a second time there is nothing to remove."""
        self._forget.detach()
        _remove(self._pixels, self._path, os.getpid())

    def _check(self, row: int, col: int, pixels: NDArray[Any]) -> None:
        """Refuse a block that is not the raster's."""
        (rows, cols), (bands, height, width) = self._grid, self.shape
        if not self._forget.alive:
            raise SaveError(f"block ({row}, {col}) comes after the raster was finished or discarded")
        if not (0 <= row < rows and 0 <= col < cols):
            raise SaveError(f"there is no block ({row}, {col}), of {rows} x {cols} blocks")
        expected = (bands, min(BLOCK, height - row * BLOCK), min(BLOCK, width - col * BLOCK))
        if pixels.shape != expected or stored_dtype(pixels.dtype) != self.dtype:
            raise SaveError(
                f"block ({row}, {col}) must be {self.dtype} {list(expected)}, got {pixels.dtype} {list(pixels.shape)}"
            )
        if (row, col) in self._written:
            raise SaveError(f"block ({row}, {col}) is written twice")

    @contextmanager
    def _discarding(self) -> Iterator[None]:
        """Discard all after an error."""
        try:
            yield
        except BaseException:
            self.discard()
            raise

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn what the system says into an error that names the folder."""
        try:
            yield
        except OSError as error:
            raise SaveError(
                f"cannot write to {self.folder}: {error.strerror or error}; make room there, or name another folder"
            ) from error


def write_geotiff(target: str | Path | BinaryIO, array: NDArray[Any], **told: Unpack[Told]) -> None:
    """Write a cloud-optimised GeoTIFF: deflate, tiles, statistics of each band.

    Where it is larger than 512 it has tiles of 512 and overviews, each half as large, until one fits a tile. A path
    gets its file only when it is whole; after an error there is none.

    Args:
        target: path, or a file open for writing bytes.
        array: [bands, height, width] of bool (stored as uint8), integers or floating point.
        told: what is known of the raster.

    Raises:
        SaveError: the array, or something said about it, does not fit a GeoTIFF, or the place cannot be written.
        InputError: the coordinate system of ``georeference`` cannot be written to a GeoTIFF.

    """
    if isinstance(target, str | Path):
        with whole_file(target) as part:
            write_geotiff_here(part, array, **told)
        return
    from rasterio.io import MemoryFile

    with MemoryFile() as pixels, MemoryFile() as made:
        _save(pixels.name, made.name, array, told)
        file = BytesIO(made.getbuffer())
    restore_names(file, told)
    target.write(file.getbuffer())


def write_geotiff_here(path: Path, array: NDArray[Any], **told: Unpack[Told]) -> None:
    """Write a GeoTIFF under its name at once; for those who rename it, or remove it after an error."""
    pixels = _private(path.absolute().with_name(f"{path.name}.pixels"))
    try:
        _save(pixels, str(path.absolute()), array, told)
    finally:
        Path(pixels).unlink(missing_ok=True)


def _save(pixels: str, target: str, array: NDArray[Any], told: Told) -> None:
    """Make the COG of an array, with a temporary file of its pixels."""
    whole = np.asarray(array)
    if whole.ndim != 3 or 0 in whole.shape:
        raise SaveError(f"a GeoTIFF takes an array [bands, height, width] that is not empty, got shape {whole.shape}")
    bands, height, width = whole.shape
    file = PixelsFile(pixels, (bands, height, width), stored_dtype(whole.dtype))
    try:
        for row, col in product(range(0, height, BLOCK), range(0, width, BLOCK)):
            file.write(row, col, whole[:, row : row + BLOCK, col : col + BLOCK])
        file.save(target, whole.dtype, told)
    finally:
        file.close()


def _private(path: Path) -> str:
    """An empty file that nobody else may read: it may lie in a folder of everybody's."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    return str(path)


def _remove(pixels: PixelsFile, path: Path, process: int) -> None:
    """Remove the files of a raster, in the process that made them alone: a fork has the same objects."""
    if os.getpid() == process:
        pixels.close()
        for file in (Path(pixels.name), path):
            with suppress(OSError):
                file.unlink(missing_ok=True)
