"""Open files that are called by names which are none of this machine's."""

from __future__ import annotations

import io
from pathlib import PurePosixPath
from typing import IO, BinaryIO, cast

from vllm_mmout.raster.sidecars.neighbours import FileWithNeighbours, Neighbours

_LONGEST = 200
"""Characters of a name."""


def named(file: IO[bytes], name: str, *, owned: bool = True, neighbours: Neighbours | None = None) -> BinaryIO:
    """A binary file under another name, which is for messages and for names of bands, and never a path.

    Args:
        file: the file, seekable; read from its start on.
        name: what to call it: without folders, and without what cannot be printed.
        owned: whether it is closed with this.
        neighbours: the files beside it that may be read as well.

    """
    made = _NamedFile(file, name, owned=owned)
    made.neighbours = neighbours
    return cast("BinaryIO", made)


class _NamedFile(FileWithNeighbours, io.BufferedIOBase):
    def __init__(self, file: IO[bytes], name: str, *, owned: bool) -> None:
        self._file = file
        self._owned = owned
        self.name = printable(name) or f"<file of {file.seek(0, 2)} bytes>"
        file.seek(0)

    def readable(self) -> bool:
        """It is, until it is closed."""
        return not self.closed

    def seekable(self) -> bool:
        """It is, until it is closed."""
        return not self.closed

    def read(self, size: int | None = -1, /) -> bytes:
        """Read on from where the file is; to its end without a number."""
        return self._open().read(-1 if size is None else size)

    def read1(self, size: int = -1, /) -> bytes:
        """As `read`."""
        return self.read(size)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Go to a place."""
        return self._open().seek(offset, whence)

    def tell(self) -> int:
        """Where the file is."""
        return self._open().tell()

    def close(self) -> None:
        """Let the file go; any number of times."""
        if not self.closed and self._owned:
            self._file.close()
        super().close()

    def _open(self) -> IO[bytes]:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        return self._file


def printable(name: str) -> str:
    """The last part of a name, with "_" for what cannot be printed; "" where nothing is left."""
    last = PurePosixPath(name.replace("\\", "/")).name if not name.startswith("<") else name
    return "".join(letter if letter.isprintable() else "_" for letter in last)[:_LONGEST]
