"""GeoTiffBlocks: a GeoTIFF that is written block by block, in any order, with a few of them in memory."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vllm_mmout.errors import SaveError
from vllm_mmout.raster.layout import BLOCK, Compression, Layout, stored_dtype
from vllm_mmout.raster.tags import colour_table, geotiff_tags
from vllm_mmout.raster.write import needs_bigtiff

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import DTypeLike, NDArray

    from vllm_mmout.raster.georeference import Georeference

_TABLE_ENTRY = 16
"""Bytes that one block takes in the tables of a file at most: its offset and its size."""


class GeoTiffBlocks:
    """A raster that becomes a file while its pixels come.

    Each block is compressed once, when it is written, and spooled to a file that has no name: it is gone with this
    object or with the process, however that ends. `finish` copies the blocks in order into a GeoTIFF, which below
    4 GiB of pixels is byte for byte that of `write_geotiff`. In memory are the blocks at work and a table of all,
    12 bytes each.

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
        if min(bands, height, width) < 1:
            raise SaveError(f"a GeoTIFF takes a raster that is not empty, got {bands} x {height} x {width}")
        self.folder = Path(tempfile.gettempdir()) if folder is None else folder
        self._layout = Layout(bands, height, width, stored_dtype(dtype), compression)
        self._grid = (bands, math.ceil(height / BLOCK), math.ceil(width / BLOCK))
        self._offsets = np.zeros(self._grid, np.int64)
        self._sizes = np.zeros(self._grid, np.int32)
        self._end = 0
        self._finished: Path | None = None
        with self._writing():
            self._spool = tempfile.TemporaryFile(dir=self.folder, buffering=0)  # noqa: SIM115 - lives as long as self
        self._forget = weakref.finalize(self, self._spool.close)

    @property
    def dtype(self) -> np.dtype[Any]:
        """What pixels are stored as."""
        return self._layout.dtype

    @property
    def shape(self) -> tuple[int, int, int]:
        """Bands, height and width of the raster."""
        return (self._layout.bands, self._layout.height, self._layout.width)

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
        whole = self._whole(pixels)
        try:
            with self._writing():
                for band, plane in enumerate(whole):
                    data = memoryview(self._layout.encode(plane))
                    self._offsets[band, row, col] = self._end
                    self._end += len(data)
                    size = len(data)
                    while data:  # a disk that is nearly full takes a part
                        data = data[self._spool.write(data) :]
                    self._sizes[band, row, col] = size
        except BaseException:
            self.discard()  # the spool ends elsewhere than the offsets say
            raise

    def finish(
        self,
        *,
        georeference: Georeference | None = None,
        nodata: float | None = None,
        descriptions: Sequence[str | None] = (),
        units: Sequence[str | None] = (),
        categories: Sequence[str] | None = None,
        colormap: NDArray[np.uint8] | None = None,
        metadata: Mapping[str, str] | None = None,
        datetime: dt.datetime | str | None = None,
    ) -> Path:
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
        try:
            self._check_whole()
            tags = geotiff_tags(
                self._layout.bands,
                self.dtype,
                georeference=georeference,
                nodata=nodata,
                descriptions=descriptions,
                units=units,
                categories=categories,
                metadata=metadata,
                datetime=datetime,
            )
            colours = None if colormap is None else colour_table(self._layout.bands, self.dtype, colormap)
            big = needs_bigtiff(self._end + self._sizes.size * _TABLE_ENTRY)
            self._finished = self.folder / f".mmout-raster.{secrets.token_hex(8)}.part"
            with self._writing(), open(self._finished, "xb", opener=_private) as file:
                self._layout.write(file, self._encoded(), tags=tags, colours=colours, bigtiff=big)
        except BaseException:
            self.discard()
            raise
        self._forget()
        return self._finished

    def discard(self) -> None:
        """Remove all that was written, the finished file too; a second time there is nothing to remove."""
        self._forget()
        if self._finished is not None:
            with contextlib.suppress(OSError):
                self._finished.unlink(missing_ok=True)

    def _check(self, row: int, col: int, pixels: NDArray[Any]) -> None:
        """Refuse a block that is not the raster's."""
        bands, height, width = self.shape
        if self._spool.closed:
            raise SaveError(f"block ({row}, {col}) comes after the raster was finished or discarded")
        if not (0 <= row < self._grid[1] and 0 <= col < self._grid[2]):
            raise SaveError(f"there is no block ({row}, {col}), of {self._grid[1]} x {self._grid[2]} blocks")
        expected = (bands, min(BLOCK, height - row * BLOCK), min(BLOCK, width - col * BLOCK))
        if pixels.shape != expected or stored_dtype(pixels.dtype) != self.dtype:
            raise SaveError(
                f"block ({row}, {col}) must be {self.dtype} {list(expected)}, got {pixels.dtype} {list(pixels.shape)}"
            )
        if self._sizes[0, row, col]:
            raise SaveError(f"block ({row}, {col}) is written twice")

    def _whole(self, pixels: NDArray[Any]) -> NDArray[Any]:
        """The pixels of a block, filled up with 0 at the edges."""
        height, width = self._layout.block
        if pixels.shape[1:] == (height, width):
            return np.ascontiguousarray(pixels, self.dtype)
        filled = np.zeros((len(pixels), height, width), self.dtype)
        filled[:, : pixels.shape[1], : pixels.shape[2]] = pixels
        return filled

    def _check_whole(self) -> None:
        missing = np.flatnonzero(self._sizes == 0)
        if missing.size:
            _, row, col = np.unravel_index(missing[0], self._grid)
            raise SaveError(f"block ({row}, {col}) was never written, of {self._grid[1]} x {self._grid[2]} blocks")

    def _encoded(self) -> Iterator[bytes]:
        """The blocks in the order of the file: band by band, in each row by row."""
        for offset, size in zip(self._offsets.flat, self._sizes.flat, strict=True):
            self._spool.seek(int(offset))
            data = self._spool.read(int(size))
            if len(data) != size:
                raise OSError(f"{size - len(data)} bytes of the spooled blocks are gone")
            yield data

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
