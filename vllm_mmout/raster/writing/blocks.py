"""GeoTiffBlocks: a GeoTIFF that is written block by block, in any order, with a few of them in memory."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import weakref
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Unpack, cast

import numpy as np

from vllm_mmout.errors import SaveError
from vllm_mmout.raster.gdal_metadata import as_pixels_have_it, format_nodata
from vllm_mmout.raster.writing.layout import BLOCK, Compression, Layout, stored_dtype
from vllm_mmout.raster.writing.pyramid import Pyramid
from vllm_mmout.raster.writing.reduction import Meaning
from vllm_mmout.raster.writing.spool import Spool
from vllm_mmout.raster.writing.write import described, meaning, write_pyramid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import DTypeLike, NDArray

    from vllm_mmout.raster.writing.tags import Told


class GeoTiffBlocks:
    """A raster that becomes a cloud-optimised GeoTIFF while its pixels come.

    Each block is compressed once, when it is written, and spooled to a file that has no name: it is gone with this
    object or with the process, however that ends. Blocks of overviews are made as soon as what they cover is there.
    `finish` copies all blocks in order into a GeoTIFF, byte for byte that of `write_geotiff`. In memory are the blocks
    at work, some that came last, and tables of all: some 60 bytes a block and band. One thread at a time may use it.

    Args:
        folder: where the files lie while they are made; None for the system's folder for temporary files.
        bands: number of bands.
        height: rows of the raster.
        width: columns of the raster.
        dtype: of the pixels; bool is stored as uint8.
        compression: "deflate", or "zstd", which is faster and not read by every program.

    Raises:
        SaveError: a GeoTIFF holds no such raster, or the folder cannot be written to.

    """

    block: int = BLOCK
    """Rows and columns of a block; those at the lower and the right edge end with the raster."""

    def __init__(
        self,
        folder: Path | None,
        *,
        bands: int,
        height: int,
        width: int,
        dtype: DTypeLike,
        compression: Compression = "deflate",
    ) -> None:
        self.folder = Path(tempfile.gettempdir()) if folder is None else folder
        self._layout = Layout.of(bands, height, width, dtype, compression)
        self._given = np.dtype(dtype)
        self._finished: Path | None = None
        with self._writing():
            file = tempfile.TemporaryFile(dir=self.folder, buffering=0)  # noqa: SIM115 - lives as long as self
        self._spool = Spool(cast("BinaryIO", file))
        self._forget = weakref.finalize(self, file.close)
        self._pyramid = Pyramid(self._layout, self._spool)

    @property
    def dtype(self) -> np.dtype[Any]:
        """What pixels are stored as."""
        return self._layout.dtype

    @property
    def shape(self) -> tuple[int, int, int]:
        """Bands, height and width of the raster."""
        return (self._layout.bands, self._layout.height, self._layout.width)

    def expect(self, *, nodata: float | None = None, classes: bool = False) -> None:
        """Say what the numbers mean, for overviews and statistics; `finish` has the last word.

        What was made on another assumption is made anew from the blocks that were written, so it is better known
        early.

        Args:
            nodata: value that means "no observation".
            classes: whether the numbers name classes, of which overviews take one rather than the mean.

        Raises:
            SaveError: the disk is full, and all that was written is discarded; or pixels cannot have that nodata, or
                the raster was finished or discarded before.

        """
        if self._spool.closed:
            raise SaveError("the raster was finished or discarded before")
        if nodata is not None:
            format_nodata(nodata, self.dtype)  # refuses what pixels cannot have
            nodata = as_pixels_have_it(nodata, self.dtype)
        self._expect(Meaning(nodata, classes))

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
            self._pyramid.write(row, col, pixels)

    def finish(self, **told: Unpack[Told]) -> Path:
        """Make the file of all blocks; what is known of the raster is said as in `write_geotiff`.

        Returns:
            A new file in the folder, under a temporary name; it is the caller's from now on, to move or to remove.

        Raises:
            SaveError: a block was never written, something said about the raster does not fit a GeoTIFF, or the disk
                is full. Nothing is left on it then. Or it was finished or discarded before: a file that was made then
                stays.
            InputError: the coordinate system of ``georeference`` cannot be written to a GeoTIFF.

        """
        if self._spool.closed:
            raise SaveError("the raster was finished or discarded before")
        with self._discarding():
            self._check_whole()
            described(self._layout, **told)  # what does not fit is said before anything is done
            self._expect(meaning(self._given, **told))
            self._finished = self.folder / f".mmout-raster.{secrets.token_hex(8)}.part"
            with self._writing(), open(self._finished, "xb", buffering=0, opener=_private) as file:
                write_pyramid(cast("BinaryIO", file), self._pyramid, **told)
        self._forget()
        return self._finished

    def discard(self) -> None:
        """Remove all that was written, the finished file too; a second time there is nothing to remove."""
        self._forget()
        if self._finished is not None:
            with contextlib.suppress(OSError):
                self._finished.unlink(missing_ok=True)

    def _expect(self, meaning: Meaning) -> None:
        with self._discarding(), self._writing():
            self._pyramid.expect(meaning)

    def _check(self, row: int, col: int, pixels: NDArray[Any]) -> None:
        """Refuse a block that is not the raster's."""
        rows, cols = self._layout.grid
        if self._spool.closed:
            raise SaveError(f"block ({row}, {col}) comes after the raster was finished or discarded")
        if not (0 <= row < rows and 0 <= col < cols):
            raise SaveError(f"there is no block ({row}, {col}), of {rows} x {cols} blocks")
        expected = (self._layout.bands, *self._layout.inside(row, col))
        if pixels.shape != expected or stored_dtype(pixels.dtype) != self.dtype:
            raise SaveError(
                f"block ({row}, {col}) must be {self.dtype} {list(expected)}, got {pixels.dtype} {list(pixels.shape)}"
            )
        if self._pyramid.has(row, col):
            raise SaveError(f"block ({row}, {col}) is written twice")

    def _check_whole(self) -> None:
        rows, cols = self._layout.grid
        for row, col in product(range(rows), range(cols)):
            if not self._pyramid.has(row, col):
                raise SaveError(f"block ({row}, {col}) was never written, of {rows} x {cols} blocks")

    @contextlib.contextmanager
    def _discarding(self) -> Iterator[None]:
        """Discard all after an error: the spool, or the tables, may be half written."""
        try:
            yield
        except BaseException:
            self.discard()
            raise

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn what the system says into an error that names the folder."""
        try:
            yield
        except OSError as error:
            raise SaveError(
                f"cannot write to {self.folder}: {error.strerror or error}; make room there, or name another folder"
            ) from error


def _private(path: str, flags: int) -> int:
    """Open a file that nobody else may read: it may lie in a folder of everybody's."""
    return os.open(path, flags, 0o600)
