"""List the scenes in a folder and its subfolders, in a bucket or on the local disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.formats import RASTER_SUFFIXES, in_bucket, natural_order
from vllm_mmout.geo.raster.remote.buckets.bucket_address import FileAddress
from vllm_mmout.geo.raster.remote.buckets.bucket_errors import errors_of
from vllm_mmout.geo.raster.remote.buckets.odd_keys import keys_from_boto3
from vllm_mmout.geo.raster.remote.buckets.stores import store_of

SCENE_SUFFIXES = (*RASTER_SUFFIXES, ".png", ".jpg", ".jpeg", ".webp")
"""File name suffixes of the files that count as scenes when a folder is listed."""


def scenes_below(address: str | os.PathLike[str]) -> list[str]:
    """Return all rasters and pictures in a folder and its subfolders, in natural order ("B2" before "B10").

    Each file is one input of a model. Hidden files and files in hidden folders (names that begin with ".") are skipped.
    The result may contain keys that obstore rejects: `address_fault` returns a message for such a key, and opening
    it raises InputError.

    Args:
        address: the address of a folder in a bucket, such as ``s3://bucket/scenes/``, or the path of a local folder.

    Returns:
        Addresses or paths. Each begins with ``address``.

    Raises:
        InputError: the folder does not exist, or it cannot be listed.

    """
    text = os.fspath(address)
    all_names = _in_bucket(text) if in_bucket(text) else _in_folder(text)
    start = text.rstrip("/") + "/"
    names = sorted((name for name in all_names if _is_scene(name)), key=natural_order)
    return [start + name for name in names]


def _is_scene(name: str) -> bool:
    path = PurePosixPath(name)
    hidden = any(part.startswith(".") and part != ".." for part in path.parts)
    return path.suffix.lower() in SCENE_SUFFIXES and not hidden


def _in_folder(folder: str) -> Iterator[str]:
    if not Path(folder).is_dir():
        raise InputError(f"no such folder: {folder} (looked from {Path.cwd()})")
    for root, _, files in os.walk(folder):
        yield from (Path(root, name).relative_to(folder).as_posix() for name in files)


def _in_bucket(address: str) -> list[str]:
    """Return the keys of all objects below a folder of a bucket, relative to the folder.

    A bucket has no empty folders, so InputError is raised if no key begins with the folder's address.
    """
    place = FileAddress.of(address.rstrip("/") + "/")
    store = store_of(place)
    import obstore

    with errors_of(place, verb="list"):
        try:
            pages = obstore.list(store, prefix=place.key.rstrip("/") or None)
            keys = [item["path"] for items in pages for item in items]
        except obstore.exceptions.InvalidPathError as error:
            keys = keys_from_boto3(place, error)
    if not keys:
        raise InputError(f"{place.name} has no objects below it; check the address")
    return [key.removeprefix(place.key) for key in keys]
