"""Write files and their sidecar files to buckets atomically."""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from vllm_mmout.errors import BucketError, InputError, SaveError
from vllm_mmout.geo.raster.remote.buckets.bucket_address import FileAddress
from vllm_mmout.geo.raster.remote.buckets.bucket_errors import errors_of, is_bucket_missing
from vllm_mmout.geo.raster.remote.buckets.redirect_check import redirect_fault
from vllm_mmout.geo.raster.remote.buckets.stores import store_of

if TYPE_CHECKING:
    from obstore import ObjectMeta

_PART = 8 << 20
"""Size of one part of a multipart upload, in bytes."""
_NEVER_THERE = ".vllm-mmout-is-the-bucket-there"
_AT_ONCE = 4
"""Number of parts that are uploaded concurrently. More parts at once would time out on a slow connection."""


@contextmanager
def uploaded(target: PurePath, sidecars: Mapping[str, bytes | None]) -> Iterator[Path]:
    """Yield a temporary path. When the ``with`` block ends, upload the file at this path to ``target``.

    ``sidecars`` maps the name of a small file to its content, or to None if that file is to be removed. Sidecar files
    are uploaded before the main file. If the upload of the main file fails, the sidecar files are restored to their
    previous content. The main file appears only when all of its parts are uploaded. After an error no part of it stays
    in the bucket. `atomic_file` has the same interface for local files.
    """
    place = _file(target)
    with tempfile.TemporaryDirectory(prefix="mmout-") as folder:
        part = Path(folder, place.key.rpartition("/")[2])
        try:
            yield part
        except OSError as error:
            raise SaveError(f"cannot write {place.name} in {folder} first: {error.strerror or error}") from error
        with errors_of(place, SaveError, verb="write"):
            _upload(place, part, sidecars)


def check_bucket(target: PurePath) -> None:
    """Raise SaveError if the bucket of ``target`` does not exist. Call this before a long computation.

    If the server does not reveal whether the bucket exists, no error is raised.
    """
    place = _place(target)
    _check_bucket(place.scheme, place.bucket)


@functools.cache
def _check_bucket(scheme: str, bucket: str) -> None:
    """Raise BucketError if the bucket does not exist. The check requests an object that should not exist.

    The bucket is not listed, since a single key that obstore rejects would make the listing fail.
    """
    place = FileAddress(scheme, bucket, _NEVER_THERE)
    store, bucket_place = store_of(place), FileAddress(scheme, bucket, "")
    import obstore

    try:
        fault = redirect_fault(place)
    except InputError as error:
        message = str(error).replace(place.name, bucket_place.name)
        raise BucketError(message) from OSError(message)
    if fault is not None:
        raise BucketError(f"{bucket_place.name}: {fault}") from OSError(fault)
    with errors_of(bucket_place, SaveError, verb="write"):
        try:
            obstore.get(store, place.key)
        except obstore.exceptions.PermissionDeniedError:  # the right to write does not imply the right to read
            pass
        except FileNotFoundError as error:
            if is_bucket_missing(error):
                raise


def _upload(place: FileAddress, file: Path, sidecars: Mapping[str, bytes | None]) -> None:
    store = store_of(place)
    import obstore

    folder = "".join(place.key.rpartition("/")[:2])
    keys = {folder + name: content for name, content in sidecars.items()}
    before: dict[str, bytes | None] = {}
    try:
        for key, content in keys.items():
            if content is not None:
                before[key] = bytes(obstore.get(store, key).bytes()) if _head(place, key) else None
                obstore.put(store, key, content)
        obstore.put(store, place.key, file, chunk_size=_PART, max_concurrency=_AT_ONCE)
    except BaseException:
        for key, content in before.items():
            with suppress(Exception):
                obstore.delete(store, key) if content is None else obstore.put(store, key, content)
        raise
    for key, content in keys.items():
        if content is None and _head(place, key):
            obstore.delete(store, key)


def _head(place: FileAddress, key: str) -> ObjectMeta | None:
    """Return the metadata of an object in a bucket, or None if the object is missing or access to it is denied."""
    store = store_of(place)
    import obstore

    try:
        return obstore.head(store, key)
    except (FileNotFoundError, obstore.exceptions.PermissionDeniedError):
        return None


def identity_in_bucket(target: PurePath) -> tuple[object, ...]:
    """Return ETag, version and size of an object in a bucket. At least one of the three changes if the object changes.

    Raises FileNotFoundError if the object does not exist.
    """
    place = FileAddress.of(target)
    with errors_of(place):
        meta = _head(place, place.key)
    if meta is None:
        raise FileNotFoundError(place.name)
    return meta["e_tag"], meta["version"], meta["size"]


def download(source: PurePath, path: Path) -> None:
    """Download an object from a bucket to the local file ``path``."""
    from vllm_mmout.geo.raster.remote.buckets.bucket_file import open_in_bucket

    with open_in_bucket(source) as file, path.open("wb") as copy:
        shutil.copyfileobj(file, copy, _PART)


def remove_in_bucket(target: PurePath) -> None:
    """Delete an object from a bucket if it exists."""
    place = FileAddress.of(target)
    store = store_of(place)
    import obstore

    with errors_of(place, SaveError, verb="write"), suppress(FileNotFoundError):
        obstore.delete(store, place.key)


def _place(target: PurePath) -> FileAddress:
    try:
        return FileAddress.of(target)
    except InputError as error:
        raise SaveError(f"cannot write {error}") from None


def _file(target: PurePath) -> FileAddress:
    place = _place(target)
    if not place.key:
        raise SaveError(f"cannot write {place.name}: it is a bucket; add a file name")
    return place
