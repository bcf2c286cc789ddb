"""Split uncompressed TIFF strips and tiles into pieces of a few rows, so that small windows are read quickly."""

from __future__ import annotations

import copy

import numpy as np
import tifffile
from numpy.typing import NDArray

PIECE = 3 * 2**17
"""Size in bytes above which an uncompressed strip or tile is split into pieces of a few rows. Each piece is read
separately."""


def block_of(page: tifffile.TiffPage) -> tuple[int, int]:
    """Return the height and width, in pixels, of a strip or tile of a TIFF page."""
    if page.is_tiled:
        return page.tilelength, page.tilewidth
    return page.rowsperstrip, page.imagewidth


def row_bytes_of(page: tifffile.TiffPage) -> int:
    """Return the bytes per row of an uncompressed strip or tile, or 0 if bit depths differ or chroma is subsampled."""
    if isinstance(page.bitspersample, tuple) or page.is_subsampled:
        return 0
    return -(-block_of(page)[1] * page.shaped[4] * page.bitspersample // 8)


def cut(
    page: tifffile.TiffPage, offsets: NDArray[np.int64], counts: NDArray[np.int64]
) -> tuple[tifffile.TiffPage, NDArray[np.int64], NDArray[np.int64]]:
    """Split large uncompressed strips and tiles into pieces of a few rows, and join small adjacent strips.

    Args:
        page: the TIFF page.
        offsets: file offset of each strip or tile, [planes, rows, columns].
        counts: number of bytes of each strip or tile, [planes, rows, columns].

    Returns:
        The page, offsets and byte counts of a TIFF stored in these pieces. Compressed pages are returned unchanged.

    """
    row_bytes, (height, _) = row_bytes_of(page), block_of(page)
    if page.compression != 1 or not row_bytes:
        return page, offsets, counts
    planes, grid_rows, columns = offsets.shape
    rows = max(1, PIECE // row_bytes)
    if not page.is_tiled and _is_contiguous(offsets, counts, height * row_bytes, page.imagelength * row_bytes):
        rows = min(rows, page.imagelength)
        offsets, height, grid_rows = offsets[:, :1], page.imagelength, 1
        counts = np.full_like(offsets, height * row_bytes)
    elif rows >= height or (page.is_tiled and (counts[offsets > 0] < height * row_bytes).any()):
        return page, offsets, counts
    else:  # pieces must not cross the ends of segments
        rows = max(part for part in range(1, rows + 1) if height % part == 0)
    pieces = -(-height // rows)
    within = np.arange(pieces, dtype=np.int64)[:, np.newaxis] * (rows * row_bytes)
    offsets = np.where(offsets[:, :, np.newaxis] > 0, offsets[:, :, np.newaxis] + within, 0)
    counts = np.clip(counts[:, :, np.newaxis] - within, 0, rows * row_bytes)
    number = -(-page.imagelength // rows)
    shape = (planes, grid_rows * pieces, columns)
    return _of_pieces(page, rows), offsets.reshape(shape)[:, :number], counts.reshape(shape)[:, :number]


def _is_contiguous(offsets: NDArray[np.int64], counts: NDArray[np.int64], size: int, total: int) -> bool:
    """Return whether the strips of each plane follow each other in the file without gaps.

    Every strip of a plane, except the last strip, must have ``size`` bytes.
    """
    others, last = counts[:, :-1], counts[:, -1]
    stored = bool(offsets.all()) and bool((others == size).all()) and bool((others.sum(axis=1) + last >= total).all())
    return stored and bool((np.diff(offsets, axis=1) == size).all())


def _of_pieces(page: tifffile.TiffPage, rows: int) -> tifffile.TiffPage:
    """Return a copy of a TIFF page whose strips or tiles have ``rows`` rows."""
    piece = copy.copy(page)
    for cached in ("decode", "hash"):
        piece.__dict__.pop(cached, None)
    if page.is_tiled:
        piece.tilelength = rows
    else:
        piece.rowsperstrip = rows
    return piece
