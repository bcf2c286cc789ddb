"""Spool: encoded blocks in a file of their own, in the order in which they came."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PIECE = 1 << 20
"""Bytes that are copied at once. Where files lie in the page cache that is faster than sendfile, and no less even."""


class Spool:
    """A file to which blocks are appended, and from which they are copied in another order.

    Args:
        file: open for reading and writing bytes, empty; unbuffered where it is a file of the system.

    """

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self._end = 0

    @property
    def closed(self) -> bool:
        """Whether the blocks are gone."""
        return self.file.closed

    def append(self, data: bytes | bytearray) -> int:
        """Add a block, and give the place where it lies.

        Raises:
            OSError: the disk is full; the spool cannot be used any more.

        """
        at = self._end
        self.file.seek(at)
        write_whole(self.file, data)
        self._end = at + len(data)
        return at

    def read(self, offset: int, size: int) -> bytes:
        """A block.

        Raises:
            OSError: it cannot be read.

        """
        self.file.seek(offset)
        data = self.file.read(size)
        if len(data) != size:
            raise _gone(size - len(data))
        return data

    def copy(self, target: BinaryIO, offsets: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Copy blocks to a file, in the order given; those that lie one behind the other at once.

        Args:
            target: open for writing, unbuffered.
            offsets: where the blocks lie.
            sizes: how long they are.

        Raises:
            OSError: the disk is full, or blocks cannot be read.

        """
        firsts = np.flatnonzero(np.concatenate([[True], offsets[1:] != (offsets + sizes)[:-1]]))
        lengths = np.add.reduceat(sizes, firsts)
        for offset, length in zip(offsets[firsts].tolist(), lengths.tolist(), strict=True):
            for start in range(offset, offset + length, _PIECE):
                write_whole(target, self.read(start, min(_PIECE, offset + length - start)))


def write_whole(file: BinaryIO, data: bytes | bytearray) -> None:
    """Write all bytes to an unbuffered file: a disk that is nearly full takes a part.

    Raises:
        OSError: it takes no more.

    """
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _gone(count: int) -> OSError:
    return OSError(errno.EIO, f"{count} bytes of the spooled blocks are gone")
