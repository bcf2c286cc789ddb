"""Read the files of a Zarr store from a folder or a zip file."""

from __future__ import annotations

import os
import stat
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.files import HeaderFile, SharedFile
from vllm_mmout.geo.raster.formats import ZARR_METADATA

_METADATA_BYTES: Final = 2**24
"""Largest accepted total size, in bytes, of the metadata files that are read from one Zarr store."""
_MOST_NODES: Final = 4096
"""Largest accepted number of arrays and groups in a Zarr group."""
_DIRECTORY_BYTES: Final = 2**24
"""Maximum size of a zip file's central directory in bytes, enough for about 150,000 files."""
_LOCAL_HEADER: Final = 30
"""Size of the fixed part of the header before each file in a zip file, in bytes (APPNOTE.TXT, 4.3.7)."""
_OPEN_FLAGS: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
"""Flags of `os.open` for reading. With O_NONBLOCK, opening a named pipe does not block the thread."""


class Store(ABC):
    """Access to the files of a Zarr store. Several threads may read them at the same time."""

    name: str
    """Name of the Zarr store in error messages."""
    _metadata_left = _METADATA_BYTES

    def read_metadata(self, key: str) -> bytes | None:
        """Return the content of a metadata file, or None if it is missing. Only one thread at a time may call this.

        Raises:
            InputError: all metadata files read so far together are too large.

        """
        data = self.read(key, self._metadata_left)
        if data is not None:
            self._metadata_left -= len(data)
        return data

    @abstractmethod
    def read(self, key: str, limit: int) -> bytes | None:
        """Return the content of the file ``key``, such as "red/zarr.json", or None if it is missing.

        Raises:
            InputError: the file has more than ``limit`` bytes, or cannot be read.

        """

    @abstractmethod
    def read_at(self, key: str, at: int, count: int) -> bytes | None:
        """Read ``count`` bytes of the file ``key`` from offset ``at``. Return None if the file is missing.

        A negative offset counts from the end. Fewer bytes are returned at the end of the file.
        """

    @abstractmethod
    def children(self, path: str) -> list[str]:
        """Return the names of the folders directly in the folder ``path`` of the store.

        A folder may be an array or a group. ``path`` is "" for the root of the store.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the store. May be called repeatedly."""

    def _too_large(self, key: str, count: int, limit: int) -> InputError:
        return InputError(
            f"{self.name}: the file {key} has {count} bytes, {limit} at most; the Zarr store is damaged, or not one"
            " that can be read; write it again"
        )


class FolderStore(Store):
    """Zarr store in a local folder. Symbolic links to files outside the folder are refused."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self._root = folder.resolve()

    def read(self, key: str, limit: int) -> bytes | None:
        """Return the content of the file ``key``. Return None if the file is missing.

        Raise InputError if the file has more than ``limit`` bytes, or cannot be read.
        """
        with self._open(key) as descriptor:
            if descriptor is None:
                return None
            size = os.fstat(descriptor).st_size
            if size > limit:
                raise self._too_large(key, size, limit)
            return _read(descriptor, 0, size)

    def read_at(self, key: str, at: int, count: int) -> bytes | None:
        """Read ``count`` bytes of the file ``key`` from offset ``at``. Return None if the file is missing."""
        with self._open(key) as descriptor:
            if descriptor is None:
                return None
            size = os.fstat(descriptor).st_size
            return _read(descriptor, *_within(size, at, count))

    def children(self, path: str) -> list[str]:
        """Return the names of the folders directly in the folder ``path`` of the store."""
        names: list[str] = []
        try:
            with os.scandir(self._root / path) as entries:
                for entry in entries:
                    if entry.is_dir() and not entry.name.startswith("."):
                        names.append(entry.name)
                    if len(names) > _MOST_NODES:
                        raise _too_many(self.name)
        except OSError as error:
            raise InputError(f"cannot read the folder {self._root / path}: {error.strerror}") from error
        return names

    def close(self) -> None:
        """Do nothing, since a store in a folder keeps no file open."""

    @contextmanager
    def _open(self, key: str) -> Iterator[int | None]:
        path = self._root / key
        try:
            if not path.resolve().is_relative_to(self._root):
                raise InputError(f"{path} is a link to a file outside the Zarr store; replace it by the file")
            descriptor = os.open(path, _OPEN_FLAGS)
        except (FileNotFoundError, NotADirectoryError):
            yield None
            return
        except (OSError, RuntimeError) as error:  # RuntimeError: a link to itself
            raise InputError(f"cannot read {path}: {error}") from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise InputError(f"{path} is not a regular file; the Zarr store is damaged")
            yield descriptor
        finally:
            os.close(descriptor)


class ZipStore(Store):
    """Zarr store in a zip file, either at the root of the archive or in its only top-level folder.

    Raises:
        BadZipFile: the file is damaged, or not a zip file.
        InputError: its names are ambiguous or lead out of the store, or it lists too many files.

    """

    def __init__(self, file: SharedFile) -> None:
        self.name = file.name
        self._file = file
        with ZipFile(HeaderFile(file, file.name, _DIRECTORY_BYTES)) as archive:  # type: ignore[arg-type]
            infos = [info for info in archive.infolist() if not info.is_dir()]
        self._infos = {info.filename: info for info in infos}
        if len(self._infos) < len(infos):
            raise InputError(f"{self.name} holds two files of one name; zip the Zarr store again")
        self._check_names()
        folders = [folder for folder, _, last in map(_split, self._infos) if last in ZARR_METADATA]
        tops = {name.partition("/")[0] for name in self._infos}
        self._prefix = "" if "" in folders or len(tops) != 1 else f"{tops.pop()}/"
        self._nodes: dict[str, list[str]] = {}
        for folder in dict.fromkeys(folders):
            parent, _, name = _split(folder)
            self._nodes.setdefault(parent, []).append(name)
        self.is_zarr = self._prefix.rstrip("/") in folders
        """Whether the zip file holds a Zarr store."""

    def read(self, key: str, limit: int) -> bytes | None:
        """Return the content of the file ``key``. Return None if the file is missing.

        Raise InputError if the file has more than ``limit`` bytes, or is damaged.
        """
        info = self._infos.get(self._prefix + key)
        if info is None:
            return None
        if max(info.file_size, info.compress_size) > limit:
            raise self._too_large(key, max(info.file_size, info.compress_size), limit)
        data = self._file.read_at(self._start(info), info.compress_size)
        if info.compress_type == ZIP_DEFLATED:
            try:
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, info.file_size + 1)
            except zlib.error as error:
                raise self._damaged(key) from error
        if len(data) != info.file_size or zlib.crc32(data) != info.CRC:
            raise self._damaged(key)
        return data

    def read_at(self, key: str, at: int, count: int) -> bytes | None:
        """Read ``count`` bytes of the file ``key`` from offset ``at``. Return None if the file is missing."""
        info = self._infos.get(self._prefix + key)
        if info is None:
            return None
        start = self._start(info)
        if info.compress_type != ZIP_STORED:
            raise InputError(
                f"{self.name} holds shards of chunks that the zip file compresses again, so that a part cannot be read;"
                " zip the store without compression, as with zip -0"
            )
        at, count = _within(info.file_size, at, count)
        return self._file.read_at(start + at, count)

    def children(self, path: str) -> list[str]:
        """Return the names of the arrays and groups directly in the folder ``path`` of the store."""
        names = self._nodes.get((self._prefix + path).rstrip("/"), [])
        if len(names) > _MOST_NODES:
            raise _too_many(self.name)
        return [name for name in names if name]

    def close(self) -> None:
        """Close the zip file. May be called repeatedly."""
        self._file.close()

    def _start(self, info: ZipInfo) -> int:
        """Return the offset of a file's data in the zip file. Raise InputError if the data cannot be read."""
        header = self._file.read_at(info.header_offset, _LOCAL_HEADER) if info.header_offset >= 0 else b""
        if not header.startswith(b"PK\x03\x04") or len(header) < _LOCAL_HEADER:
            raise self._damaged(info.filename)
        if info.flag_bits & 1 or info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
            raise InputError(
                f"{self.name}: {info.filename} is encrypted, or compressed by another method than deflate; zip the"
                " store without compression, as with zip -0"
            )
        lengths = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        return info.header_offset + _LOCAL_HEADER + lengths

    def _check_names(self) -> None:
        for name in self._infos:
            if name.startswith("/") or "\\" in name or ".." in name.split("/"):
                raise InputError(f"{self.name} holds {name!r}, a path that leads out of the Zarr store; remove it")

    def _damaged(self, key: str) -> InputError:
        return InputError(f"{self.name} is damaged: {key} does not unpack to what the zip file states; fetch it again")


def zip_store(file: SharedFile) -> ZipStore | None:
    """Return the Zarr store in a zip file, or None if the file is damaged or contains something else."""
    try:
        store = ZipStore(file)
    except (BadZipFile, NotImplementedError, UnicodeError, ValueError, OverflowError):
        return None
    return store if store.is_zarr else None


def _split(name: str) -> tuple[str, str, str]:
    """Split a path into its folder ("" if it has none), the last separator, and its last part."""
    return name.rpartition("/")


def _within(size: int, at: int, count: int) -> tuple[int, int]:
    """Clip a byte range to a file of ``size`` bytes. Return its offset and length.

    A negative offset counts from the end of the file.
    """
    start = min(max(0, size + at if at < 0 else at), size)
    return start, min(count, size - start)


def _read(descriptor: int, at: int, count: int) -> bytes:
    parts, end = [], at + count
    while at < end and (part := os.pread(descriptor, end - at, at)):
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def _too_many(name: str) -> InputError:
    return InputError(f"{name} has a group of more than {_MOST_NODES} arrays; give the path of one of them")
