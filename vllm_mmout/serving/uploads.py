"""Files of a form, as they come: in memory while small, then in files without a name."""

from __future__ import annotations

import io
import tempfile
from dataclasses import dataclass
from typing import BinaryIO

_IN_MEMORY = 1 << 20
"""Bytes of one file that are kept in memory."""
_LONGEST_NAME = 200


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
    """A file while it comes.

    Args:
        name: the client's name for it.

    """

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
