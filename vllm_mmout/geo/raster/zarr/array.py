"""Class `ZarrArray`: an array of a Zarr store that is read by windows."""

from __future__ import annotations

import base64
import binascii
import contextlib
import itertools
import math
import struct
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.zarr.codecs import check_codecs, checked, decoded, max_encoded_bytes
from vllm_mmout.geo.raster.zarr.encoding import ShardIndex, chunk_keys, encoding_of

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.raster import Window
    from vllm_mmout.geo.raster.zarr.nodes import Node

_LONGEST: Final = 2**22
"""Largest accepted number of coordinates along an axis of a raster."""
_MOST_PIECES: Final = 4096
"""Largest accepted number of pieces (chunks) that an array of coordinates is stored in."""
_INDICES: Final = 64
"""Largest number of shard indices that are cached."""
_NOT_STORED: Final = 2**64 - 1
"""Marker in a shard index for a chunk that is not stored. It replaces the chunk's offset and size."""


class ZarrArray:
    """Array of a Zarr store. Several threads may read it at the same time.

    Raises:
        InputError: the array is stored in a way that is not supported, or in chunks that are too large.

    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.shape = node.shape
        self.encoding = encoding_of(node)
        check_codecs(node, self.encoding)
        self.fill = fill_of(node, self.encoding.dtype)
        self._keys = chunk_keys(node)
        self._indices: dict[str, NDArray[np.uint64] | None] = {}
        self._lock = threading.Lock()

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the elements in native byte order, or object for strings."""
        return np.dtype(np.object_) if self.encoding.dtype is None else self.encoding.dtype.newbyteorder("=")

    @property
    def block(self) -> tuple[int, int]:
        """Height and width of a chunk. The last two axes of a chunk are rows and columns."""
        return self.encoding.shape[-2], self.encoding.shape[-1]

    def read(self, planes: Sequence[tuple[int, ...]], window: Window) -> NDArray[Any]:
        """Read a window of several planes of the array. The last two axes of the array are rows and columns.

        Args:
            planes: indices of each plane along the other axes.
            window: rows and columns to read.

        Returns:
            The planes [planes, height, width].

        """
        out = np.empty((len(planes), window.height, window.width), self.dtype)
        sides = self.encoding.shape
        together: dict[tuple[int, ...], list[int]] = {}
        for number, plane in enumerate(planes):
            at = tuple(index // side for index, side in zip(plane, sides[:-2], strict=True))
            together.setdefault(at, []).append(number)
        rows = list(_pieces(window.row, window.height, sides[-2]))
        cols = list(_pieces(window.col, window.width, sides[-1]))
        for at, numbers in together.items():
            for (row, into_rows, from_rows), (col, into_cols, from_cols) in itertools.product(rows, cols):
                chunk = self._chunk((*at, row, col))
                for number in numbers:
                    if chunk is None:
                        out[number, into_rows, into_cols] = self.fill
                        continue
                    inside = tuple(index % side for index, side in zip(planes[number], sides[:-2], strict=True))
                    out[number, into_rows, into_cols] = chunk[inside][from_rows, from_cols]
        return out

    def vector(self) -> NDArray[Any]:
        """Read the whole array as a vector. Raise InputError if the array has two or more axes, or is too long.

        A scalar array is returned as a vector of one element.
        """
        count = math.prod(self.shape)
        if len(self.shape) > 1 or count > _LONGEST or count > _MOST_PIECES * math.prod(self.encoding.shape):
            raise InputError(
                f"{self.node.name} has the shape {list(self.shape)} in chunks of {list(self.encoding.shape)}, which is"
                " none of coordinates; write it in one chunk"
            )
        if not self.shape:
            chunk = self._chunk(())
            return np.array([self.fill]) if chunk is None else chunk.reshape(1)
        (length,), (side,) = self.shape, self.encoding.shape
        out = np.full(length, self.fill, self.dtype)
        for start in range(0, length, side):
            chunk = self._chunk((start // side,))
            if chunk is not None:
                out[start : start + side] = chunk[: length - start]
        return out

    def _chunk(self, index: tuple[int, ...]) -> NDArray[Any] | None:
        """Read and decode the chunk at position ``index`` of the grid of chunks. Return None if it is not stored."""
        store, encoding = self.node.store, self.encoding
        limit = max_encoded_bytes(encoding)
        if encoding.shards is None:
            key = self._keys.of(index)
            data = store.read(key, limit)
        else:
            shards = encoding.shards
            key = self._keys.of([number // count for number, count in zip(index, shards.grid, strict=True)])
            data = self._of_shard(
                key, shards, [number % count for number, count in zip(index, shards.grid, strict=True)]
            )
        return None if data is None else decoded(data, encoding, f"{store.name}/{key}")

    def _of_shard(self, key: str, shards: ShardIndex, position: Sequence[int]) -> bytes | None:
        """Return the encoded bytes of the chunk at ``position`` within a shard, or None if it is not stored."""
        index = self._index(key, shards)
        offset, count = (_NOT_STORED, 0) if index is None else map(int, index[tuple(position)])
        if offset == _NOT_STORED:
            return None
        if count > max_encoded_bytes(self.encoding):
            raise InputError(f"{self.node.name}: the shard {key} states a chunk of {count} bytes, which is too large")
        return self.node.store.read_at(key, offset, count)

    def _index(self, key: str, shards: ShardIndex) -> NDArray[np.uint64] | None:
        """Read a shard's index: offset and size of each chunk, uint64 [..., 2]. Return None if the shard is missing."""
        with self._lock:
            if key in self._indices:
                return self._indices[key]
        size = 16 * math.prod(shards.grid)
        stored = size + 4 * shards.checked
        data = self.node.store.read_at(key, -stored if shards.at_end else 0, stored)
        if data is not None:
            name = f"the index of {self.node.store.name}/{key}"
            data = checked(data, name) if shards.checked else data
            if len(data) != size:
                raise InputError(f"{name} is truncated; fetch or write the Zarr store again")
        index = None if data is None else np.frombuffer(data, "<u8").reshape(*shards.grid, 2)
        with self._lock:
            while len(self._indices) >= _INDICES:
                del self._indices[next(iter(self._indices))]
            self._indices[key] = index
        return index


def _pieces(start: int, count: int, side: int) -> Iterator[tuple[int, slice, slice]]:
    """Split a range of an axis into pieces, so that each piece is inside one chunk.

    The range begins at element ``start`` of the axis and has ``count`` elements. A chunk has ``side`` elements along
    the axis. Yield for each piece the index of its chunk, the piece as a slice of the range, and the piece as a slice
    of the chunk.
    """
    for number in range(start // side, (start + count - 1) // side + 1):
        first, end = max(start, number * side), min(start + count, (number + 1) * side)
        yield number, slice(first - start, end - start), slice(first - number * side, end - number * side)


def fill_of(node: Node, dtype: np.dtype[Any] | None) -> Any:
    """Return the fill value of an array as a NumPy scalar or a str. Elements of missing chunks have this value."""
    stated = node.stated.get("fill_value")
    if dtype is None or dtype.kind == "U":
        return stated if isinstance(stated, str) else ""
    native = dtype.newbyteorder("=")
    value = 0 if stated is None else number_of(stated, native)
    if value is None:
        raise node.damaged(f"its fill value is {stated!r:.100}, which {native} cannot hold")
    with np.errstate(over="ignore"):
        return native.type(value)


def number_of(value: Any, dtype: np.dtype[Any]) -> Any:
    """Convert a number from JSON metadata to a number that ``dtype`` can hold. Return None if that is impossible.

    Floating-point numbers may also be "NaN", "Infinity", hexadecimal bytes, or base64 of a float64 as xarray writes.
    """
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
    if isinstance(value, bool):
        return value if dtype.kind == "b" else None
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        return int(value) if whole and limits.min <= value <= limits.max else None
    if dtype.kind == "c" and isinstance(value, list) and len(value) == 2:
        parts = [number_of(part, np.dtype(np.float64)) for part in value]
        return None if None in parts else complex(*parts)
    if isinstance(value, int | float | str):
        return _float_of(value, dtype)
    return None


def _float_of(text: float | str, dtype: np.dtype[Any]) -> float | None:
    with contextlib.suppress(ValueError, OverflowError):
        return float(text)
    if not isinstance(text, str):
        return None
    try:
        if text.startswith("0x"):
            return float(np.frombuffer(bytes.fromhex(text[2:])[::-1], dtype.newbyteorder("<"))[0])
        return float(struct.unpack("<d", base64.b64decode(text, validate=True))[0])
    except (ValueError, IndexError, struct.error, binascii.Error):
        return None
