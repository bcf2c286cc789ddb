"""Read and write files in a results folder or bucket. File names are relative to the folder or bucket."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from vllm_mmout.errors import SaveError
from vllm_mmout.geo import FileAddress, errors_of, in_bucket, object_store

if TYPE_CHECKING:
    from obstore.store import ObjectStore

FOLDER: Final = ".vllm-mmout"
"""Name of the folder for internal files, inside the results folder."""
PARTS: Final = f"{FOLDER}/parts"
"""Name of the folder for intermediate results, such as the results of a scene's windows. Intermediate results are
deleted when the final result is complete."""
RUNS: Final = f"{FOLDER}/runs"
"""Name of the folder for temporary files. They are deleted when all scenes are done."""


class ResultFile(msgspec.Struct, frozen=True):
    """File of a result, with its address, hash and size in bytes."""

    address: str
    sha256: str
    nbytes: int


def main_last(files: Iterable[Path]) -> list[Path]:
    """Sort a result's files so that the main file, which has the shortest name, is last. Style files come first."""
    return sorted(files, key=lambda file: (file.suffix != ".qml", -len(file.name)))


class Objects:
    """Files in a local folder or a bucket, by relative name. Writes are atomic, and all methods block.

    Raises:
        SaveError: the folder or bucket cannot be reached; the message says why.

    """

    def __init__(self, root: str) -> None:
        self._root = root.rstrip("/") + "/"
        self._local = None if in_bucket(root) else Path(root).absolute()
        if self._local is not None:
            try:
                self._local.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise SaveError(f"the folder {root} cannot be made: {error.strerror}; choose another folder") from error
        self._place = FileAddress.of(self._root)
        self._store: ObjectStore = object_store(self._root)[0]

    def address(self, name: str) -> str:
        """Return the path or URL of the file ``name``. ``name`` is relative to the results folder or bucket."""
        return f"{self._root}{name}"

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file, or None if it does not exist."""
        with self._errors("read"), suppress(FileNotFoundError):
            return bytes(self._store.get(self._key(name)).bytes())
        return None

    def write(self, name: str, content: bytes) -> None:
        """Write a small file, replacing an older file of this name."""
        with self._errors("write"):
            self._store.put(self._key(name), content)

    def size(self, address: str) -> int | None:
        """Return the size in bytes of the file at an address, or None if it does not exist."""
        with self._errors("read"), suppress(FileNotFoundError):
            return int(self._store.head(self._key_of(address))["size"])
        return None

    def remove(self, address: str) -> None:
        """Delete the file at an address if it exists."""
        with self._errors("write"), suppress(FileNotFoundError):
            self._store.delete(self._key_of(address))

    def keys(self, folder: str) -> list[str]:
        """Return the keys of all files below a folder, as the object store names them."""
        with self._errors("list"):
            return [entry["path"] for page in self._store.list(self._key(folder) + "/") for entry in page]

    def remove_below(self, folder: str) -> None:
        """Delete all files below a folder."""
        if self._local is not None:
            shutil.rmtree(self._local / folder, ignore_errors=True)
        elif keys := self.keys(folder):
            with self._errors("write"):
                self._store.delete(keys)

    @contextmanager
    def temporary_folder(self, run: str) -> Iterator[Path]:
        """Yield a temporary folder for files that `move_in` will move to the results folder when they are finished."""
        parent = None
        if self._local is not None:
            parent = self._local / RUNS / run
            parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="work-", dir=parent) as folder:
            yield Path(folder)

    def move_in(self, file: Path, name: str) -> ResultFile:
        """Move a temporary file into the results folder or bucket, as ``name``. Return the address, hash and size."""
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        nbytes = file.stat().st_size
        with self._errors("write"):
            if self._local is None:
                self._store.put(self._key(name), file)
            else:
                target = self._local / name
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(file, target)  # noqa: PTH105 - its name says that it replaces an existing file
        return ResultFile(self.address(name), digest, nbytes)

    @contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        with errors_of(self._place, SaveError, verb=verb):
            yield

    def _key(self, name: str) -> str:
        return self._place.key + name

    def _key_of(self, address: str) -> str:
        return self._key(address.removeprefix(self._root))
