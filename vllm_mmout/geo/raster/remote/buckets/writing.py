"""Files written to buckets, whole or not at all, with the small ones that lie beside them."""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from vllm_mmout.errors import BucketError, InputError, SaveError
from vllm_mmout.geo.raster.remote.buckets.direct import redirect_fault
from vllm_mmout.geo.raster.remote.buckets.faults import errors_of, is_bucket_missing
from vllm_mmout.geo.raster.remote.buckets.stores import Place

if TYPE_CHECKING:
    from obstore import ObjectMeta

_PART = 8 << 20
"""Bytes of one part of an upload."""
_NEVER_THERE = ".vllm-mmout-is-the-bucket-there"
_AT_ONCE = 4
"""Parts on their way: a slow line has to carry them within the time that a request may take."""


@contextmanager
def uploaded(target: PurePath, sidecars: Mapping[str, bytes | None]) -> Iterator[Path]:
    """Give a temporary name on disk; what was written there goes up at the end, as `atomic_file` has it.

    The small files beside it go first, and come back as they were where the large one cannot be written; that one
    appears at once, when all of its parts are there. After an error none of its parts stays in the bucket.
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
    """Raise SaveError if a bucket is known not to be there, before a long computation is made for it."""
    place = _place(target)
    _check_bucket(place.scheme, place.bucket)


@functools.cache
def _check_bucket(scheme: str, bucket: str) -> None:
    """Ask for an object that need not exist, and raise BucketError if the answer is that the bucket is missing.

    Nothing is listed, since one key that obstore does not take would make the listing fail.
    """
    place = Place(scheme, bucket, _NEVER_THERE)
    store, named = place.store, Place(scheme, bucket, "")
    import obstore

    try:
        fault = redirect_fault(place)
    except InputError as error:
        said = str(error).replace(place.name, named.name)
        raise BucketError(said) from OSError(said)
    if fault is not None:
        raise BucketError(f"{named.name}: {fault}") from OSError(fault)
    with errors_of(named, SaveError, verb="write"):
        try:
            obstore.get(store, place.key)
        except obstore.exceptions.PermissionDeniedError:  # the right to write does not imply the right to read
            pass
        except FileNotFoundError as error:
            if is_bucket_missing(error):
                raise


def _upload(place: Place, file: Path, sidecars: Mapping[str, bytes | None]) -> None:
    store = place.store
    import obstore

    before: dict[str, bytes | None] = {}
    try:
        for suffix, content in sidecars.items():
            if content is not None:
                name = place.key + suffix
                before[name] = bytes(obstore.get(store, name).bytes()) if _found(place, suffix) else None
                obstore.put(store, name, content)
        obstore.put(store, place.key, file, chunk_size=_PART, max_concurrency=_AT_ONCE)
    except BaseException:
        for name, content in before.items():
            with suppress(Exception):
                obstore.delete(store, name) if content is None else obstore.put(store, name, content)
        raise
    for suffix, content in sidecars.items():
        if content is None and _found(place, suffix):
            obstore.delete(store, place.key + suffix)


def _found(place: Place, suffix: str = "") -> ObjectMeta | None:
    """What is known of an object; None where it is not there, or may not be seen."""
    store = place.store
    import obstore

    try:
        return obstore.head(store, place.key + suffix)
    except (FileNotFoundError, obstore.exceptions.PermissionDeniedError):
        return None


def identity_in_bucket(target: PurePath) -> tuple[object, ...]:
    """What tells one version of an object from another; FileNotFoundError where there is none."""
    place = Place.of(target)
    with errors_of(place):
        found = _found(place)
    if found is None:
        raise FileNotFoundError(place.name)
    return found["e_tag"], found["version"], found["size"]


def download(source: PurePath, path: Path) -> None:
    """Copy an object to a file on disk."""
    from vllm_mmout.geo.raster.remote.buckets.bucket_file import open_in_bucket

    with open_in_bucket(source) as file, path.open("wb") as copy:
        shutil.copyfileobj(file, copy, _PART)


def remove_in_bucket(target: PurePath) -> None:
    """Remove an object; nothing where there is none."""
    place = Place.of(target)
    store = place.store
    import obstore

    with errors_of(place, SaveError, verb="write"), suppress(FileNotFoundError):
        obstore.delete(store, place.key)


def _place(target: PurePath) -> Place:
    try:
        return Place.of(target)
    except InputError as error:
        raise SaveError(f"cannot write {error}") from None


def _file(target: PurePath) -> Place:
    place = _place(target)
    if not place.key:
        raise SaveError(f"cannot write {place.name}: it is a bucket; add a file name")
    return place
