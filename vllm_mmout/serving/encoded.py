"""Encoded: one result as the bytes of a file, in memory or on disk, until it has been sent."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from io import FileIO
from pathlib import Path
from typing import BinaryIO

SUFFIXES = {
    "png": ".png",
    "webp": ".webp",
    "jpeg": ".jpg",
    "tiff": ".tif",
    "npz": ".npz",
    "json": ".json",
    "geojson": ".geojson",
    **{name: f".{name}" for name in ("mp3", "opus", "flac", "wav", "pcm")},
}
"""Format -> suffix of a file name."""

MEDIA_TYPES = {
    "png": "image/png",
    "webp": "image/webp",
    "jpeg": "image/jpeg",
    "tiff": "image/tiff",
    "npz": "application/x-npz",
    "json": "application/json",
    "geojson": "application/geo+json",
}
"""Format -> its media type; the archive of numpy has none that is registered."""

SOUND_TYPES = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg; codecs=opus",  # RFC 7845, 9
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
"""Format of a sound -> its media type; raw samples have none that is registered and little endian."""

OTHER = ".bin"
"""Suffix of a format that is none of ours."""
UNKNOWN = "application/octet-stream"
"""Media type of a file of which no more is known."""

_COPIED = 1 << 20
"""Bytes that are copied at once."""


class Encoded:
    """One result as the bytes of a file.

    A file on disk is removed by `close`, when the object is collected, or when the process ends normally. Threads may
    read and close one at the same time.

    Args:
        content: the bytes; a file in a folder made by `own_folder`, which goes with it; or an unbuffered file that is
            open for reading, and closed with the result.
        format: "png", "tiff"...
        media_type: what the bytes are, as HTTP says it; None: that of the format.
        size: (width, height) in pixels, None for what has none.
        background: "transparent" or "opaque" for a picture, None for anything else.

    """

    def __init__(
        self,
        content: bytes | Path | BinaryIO,
        format: str,  # noqa: A002 - the word of OpenAI's interface
        *,
        media_type: str | None = None,
        size: tuple[int, int] | None = None,
        background: str | None = None,
    ) -> None:
        self.format = format
        self.media_type = media_type or MEDIA_TYPES.get(format) or SOUND_TYPES.get(format, UNKNOWN)
        self.size = None if size is None else f"{size[0]}x{size[1]}"
        self.background = background
        self._lock = threading.Lock()
        self._content: bytes | Path | None = content if isinstance(content, bytes | Path) else b""
        self._file = None if isinstance(content, bytes | Path) else self._closing(content)
        self._remove = None
        if isinstance(content, bytes):
            self.nbytes = len(content)
        elif isinstance(content, Path):
            self._remove = weakref.finalize(self, _remove_folder, content.parent, os.getpid())
            self.nbytes = content.stat().st_size
        else:
            self.nbytes = os.fstat(content.fileno()).st_size

    @property
    def suffix(self) -> str:
        """Of a name for the file."""
        return SUFFIXES.get(self.format, OTHER)

    def read(self, at: int, count: int) -> bytes:
        """Some of the bytes; fewer at the end.

        Raises:
            ValueError: the result is closed, or was stored elsewhere.

        """
        with self._lock:
            content = self._content
            if content is None:
                raise ValueError("the result was closed or stored; read it before")
            if self._file is None:
                if isinstance(content, bytes):
                    return content[at : at + count]
                self._file = self._closing(content.open("rb", buffering=0))
            self._file.seek(at)
            data = self._file.read(count)
            while 0 < len(data) < count and (more := self._file.read(count - len(data))):  # a read may give less
                data += more
            return data

    def store(self, target: Path) -> None:
        """Make the bytes a new file, readable by this user alone; the result is closed then.

        Args:
            target: a name that is free. The file may be seen there before it is whole.

        Raises:
            OSError: it cannot be written; what was written of it may be left.

        """
        with self._lock:
            content = self._content
            if content is None:
                raise ValueError("the result was closed or stored already")
            if isinstance(content, bytes):
                with _new(target) as file:
                    file.write(content)
            else:
                _moved(content, target)
        self.close()

    def close(self) -> None:
        """Let the bytes go; any number of times."""
        with self._lock:
            self._content = None
            if self._file is not None:
                self._file.close()
                self._file = None
        if self._remove is not None:
            self._remove()

    def _closing(self, file: BinaryIO | FileIO) -> BinaryIO | FileIO:
        """A file that is closed when this object is collected."""
        weakref.finalize(self, file.close)
        return file


class Section:
    """A stretch of a result's bytes, for an answer of just these.

    Args:
        whole: the result; it is closed with this.
        start: its first byte.
        nbytes: how many.

    """

    def __init__(self, whole: Encoded, start: int, nbytes: int) -> None:
        self._whole = whole
        self._start = start
        self.nbytes = nbytes

    def read(self, at: int, count: int) -> bytes:
        """As `Encoded.read`."""
        return self._whole.read(self._start + at, min(count, self.nbytes - at))

    def close(self) -> None:
        """As `Encoded.close`."""
        self._whole.close()


def own_folder(parent: Path | None = None) -> Path:
    """Make a temporary folder that this user alone can look into.

    Args:
        parent: in which it is made; None: that of the system for temporary files.

    Raises:
        OSError: it cannot be made.

    """
    return Path(tempfile.mkdtemp(prefix="mmout-result-", dir=parent))


def _new(target: Path) -> BinaryIO:
    return os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _moved(file: Path, target: Path) -> None:
    """Move a file, or copy it where the target lies on another disk."""
    try:
        file.chmod(0o600)
        file.rename(target)
    except OSError:
        with file.open("rb") as source, _new(target) as copy:
            shutil.copyfileobj(source, copy, _COPIED)


def _remove_folder(folder: Path, process: int) -> None:
    """Remove a folder, in the process that made it alone: a fork has the same objects."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
