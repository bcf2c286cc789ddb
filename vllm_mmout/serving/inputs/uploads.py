"""Uploaded files of requests, and file objects with a name."""

from __future__ import annotations

import io
import tempfile
from dataclasses import dataclass
from typing import IO, BinaryIO, cast

from vllm_mmout.geo import FileWithNeighbours, Neighbours, printable_name

_IN_MEMORY = 1 << 20
"""Maximum number of bytes of an upload that are kept in memory. Larger uploads go to disk."""


@dataclass(slots=True)
class Upload:
    """File that a client sent, in memory if it is small, else on disk."""

    name: str
    """File name that the client sent, without folders. It is shown in messages and may name a band, but is never used
    as a path."""
    file: BinaryIO
    """Seekable file, positioned at its start once it is complete."""
    size: int
    """Number of bytes written to ``file`` so far."""

    @classmethod
    def begun(cls, name: str) -> Upload:
        """Create an empty upload for a file that a client sends. ``name`` is the name of the file."""
        file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - the form closes it
        return cls(name.replace("\\", "/").rpartition("/")[2][:200], cast("BinaryIO", file), 0)

    def takes(self, more: int) -> bool:
        """Return whether the upload can take ``more`` bytes in memory, without a write to disk."""
        return self.size + more <= _IN_MEMORY

    def write(self, piece: bytes) -> None:
        """Append the bytes ``piece`` to the upload. The call may block if ``takes(len(piece))`` is False."""
        try:
            self.file.write(piece)
        except OSError as error:
            # The folder, because an error of a temporary file names no file.
            error.filename = error.filename or tempfile.gettempdir()
            raise
        self.size += len(piece)


@dataclass(frozen=True, slots=True)
class ReceivedForm:
    """Fields and uploaded files of a form by name, each in the order sent."""

    fields: dict[str, list[str]]
    files: dict[str, list[Upload]]

    def close(self) -> None:
        """Close all uploaded files. The call blocks while the disk frees large files."""
        for uploads in self.files.values():
            for upload in uploads:
                upload.file.close()


def named(file: IO[bytes], name: str, *, owned: bool = True, neighbours: Neighbours | None = None) -> BinaryIO:
    """Wrap a file with a name, which is used in messages and to recognise bands, but never as a path."""
    made = _NamedFile(file, name, owned=owned)
    made.neighbours = neighbours
    return cast("BinaryIO", made)


class _NamedFile(FileWithNeighbours, io.BufferedIOBase):
    def __init__(self, file: IO[bytes], name: str, *, owned: bool) -> None:
        self._file = file
        self._owned = owned
        self.name = printable_name(name) or f"<file of {file.seek(0, 2)} bytes>"
        file.seek(0)

    def readable(self) -> bool:
        return not self.closed

    def seekable(self) -> bool:
        return not self.closed

    def read(self, size: int | None = -1, /) -> bytes:
        return self._open().read(-1 if size is None else size)

    def read1(self, size: int = -1, /) -> bytes:
        return self.read(size)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._open().seek(offset, whence)

    def tell(self) -> int:
        return self._open().tell()

    def close(self) -> None:
        if not self.closed and self._owned:
            self._file.close()
        super().close()

    def _open(self) -> IO[bytes]:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        return self._file
