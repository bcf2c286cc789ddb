"""Files that clients send, in memory while small, then in files without a name; and files under a client's names."""

from __future__ import annotations

import io
import tempfile
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, BinaryIO, cast

from vllm_mmout.geo.raster.files import FileWithNeighbours, Neighbours

_IN_MEMORY = 1 << 20
"""Bytes of one file that are kept in memory."""
_LONGEST_NAME = 200
"""Characters of a name."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that a client sent."""

    name: str
    """The client's name for it, without folders: for messages and names of bands, never a path here."""
    file: BinaryIO
    """Seekable, at its start."""
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Form:
    """What a form held, each field and file under its name in the order sent."""

    fields: dict[str, list[str]]
    files: dict[str, list[Upload]]

    def close(self) -> None:
        """Close all files; blocks as long as the disk needs to let go of large ones."""
        for uploads in self.files.values():
            for upload in uploads:
                upload.file.close()


class Spool:
    """A file while it comes."""

    def __init__(self, name: str) -> None:
        self._name = name.replace("\\", "/").rpartition("/")[2][:_LONGEST_NAME]
        self._file: BinaryIO = io.BytesIO()
        self._on_disk = False
        self.size = 0

    def takes(self, more: int) -> bool:
        """Whether so many further bytes can be written without waiting for a disk."""
        return not self._on_disk and self.size + more <= _IN_MEMORY

    def write(self, piece: bytes) -> None:
        """Append; waits for the disk unless it `takes` the piece."""
        if not self._on_disk and not self.takes(len(piece)):
            small, self._file = self._file, tempfile.TemporaryFile()  # noqa: SIM115 - the form's, which closes it
            self._on_disk = True
            small.seek(0)
            self._file.write(small.read())
        self._file.write(piece)
        self.size += len(piece)

    def upload(self) -> Upload:
        """The file as a whole, at its start; waits for the disk where it lies there."""
        self._file.seek(0)
        return Upload(self._name, self._file, self.size)

    def close(self) -> None:
        """Throw away what came."""
        self._file.close()


def named(file: IO[bytes], name: str, *, owned: bool = True, neighbours: Neighbours | None = None) -> BinaryIO:
    """A binary file under another name, which is for messages and for names of bands, and never a path."""
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
    return "".join(letter if letter.isprintable() else "_" for letter in last)[:_LONGEST_NAME]
