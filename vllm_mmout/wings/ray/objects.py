"""Objects: the files of a folder or of a bucket, by their names below it."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from vllm_mmout.errors import SaveError
from vllm_mmout.geo import Place, errors_of, in_bucket

if TYPE_CHECKING:
    from obstore.store import ObjectStore

FOLDER: Final = ".vllm-mmout"
"""Where what is no result lies, below the folder of results."""
RUNS: Final = f"{FOLDER}/runs"
"""Where what is known of a run until its end lies."""


class ResultFile(msgspec.Struct, frozen=True):
    """A file of a result."""

    address: str
    sha256: str
    nbytes: int


class Objects:
    """What lies below one address; an object is there as a whole or not at all. All methods block.

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
                raise SaveError(f"the folder {root} cannot be made: {error.strerror}; choose another one") from error
        self._place = Place.of(self._root)
        self._store: ObjectStore = self._place.store

    def address(self, name: str) -> str:
        """What an object is called by a user."""
        return f"{self._root}{name}"

    def read(self, name: str) -> bytes | None:
        """The bytes of a small object; None if there is none."""
        with self._errors("read"), suppress(FileNotFoundError):
            return bytes(self._store.get(self._key(name)).bytes())
        return None

    def write(self, name: str, content: bytes) -> None:
        """Make a small object, in the place of an older one."""
        with self._errors("write"):
            self._store.put(self._key(name), content)

    def size(self, address: str) -> int | None:
        """Bytes of an object, by its address; None if there is none."""
        with self._errors("read"), suppress(FileNotFoundError):
            return int(self._store.head(self._key_of(address))["size"])
        return None

    def remove(self, address: str) -> None:
        """Remove an object by its address, if it is there."""
        with self._errors("write"), suppress(FileNotFoundError):
            self._store.delete(self._key_of(address))

    def keys(self, folder: str) -> list[str]:
        """What all objects below a folder are called in the store."""
        with self._errors("list"):
            return [found["path"] for page in self._store.list(self._key(folder) + "/") for found in page]

    def remove_below(self, folder: str) -> None:
        """Remove all objects below a folder."""
        if self._local is not None:
            shutil.rmtree(self._local / folder, ignore_errors=True)
        elif keys := self.keys(folder):
            with self._errors("write"):
                self._store.delete(keys)

    @contextmanager
    def workshop(self, run: str) -> Iterator[Path]:
        """A folder of this machine for files until they are `placed`; on the disk where they go, if that is local."""
        where = None
        if self._local is not None:
            where = self._local / RUNS / run
            where.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="work-", dir=where) as folder:
            yield Path(folder)

    def placed(self, file: Path, name: str) -> ResultFile:
        """Move a file to where it belongs, and say what it is."""
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        nbytes = file.stat().st_size
        with self._errors("write"):
            if self._local is None:
                self._store.put(self._key(name), file)
            else:
                target = self._local / name
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(file, target)  # noqa: PTH105 - says that one may be there
        return ResultFile(self.address(name), digest, nbytes)

    @contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        with errors_of(self._place, SaveError, verb=verb):
            yield

    def _key(self, name: str) -> str:
        return self._place.key + name

    def _key_of(self, address: str) -> str:
        return self._key(address.removeprefix(self._root))
