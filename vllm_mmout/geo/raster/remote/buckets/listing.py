"""The scenes in a folder, of a bucket or of this machine, with all folders below it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.formats import RASTER_SUFFIXES, in_bucket, natural_order
from vllm_mmout.geo.raster.remote.buckets.faults import errors_of
from vllm_mmout.geo.raster.remote.buckets.odd_keys import keys_as_stored
from vllm_mmout.geo.raster.remote.buckets.stores import Place

SCENE_SUFFIXES = (*RASTER_SUFFIXES, ".png", ".jpg", ".jpeg", ".webp")
"""What is taken for a scene where a folder is listed."""


def scenes_below(address: str | os.PathLike[str]) -> list[str]:
    """All rasters and pictures in a folder and in the folders below it, each one input, "B2" before "B10".

    What lies in hidden folders, or is hidden itself by a "." at the start of its name, is passed over. The result
    may hold keys that obstore refuses: `address_fault` returns a message for them, and opening one raises InputError.

    Args:
        address: of a folder in a bucket, ``s3://bucket/scenes/``, or the path of one on this machine.

    Returns:
        Addresses, or paths that begin as ``address`` does.

    Raises:
        InputError: there is no such folder, or it cannot be listed.

    """
    text = os.fspath(address)
    found = _in_bucket(text) if in_bucket(text) else _in_folder(text)
    start = text.rstrip("/") + "/"
    names = sorted((name for name in found if _is_scene(name)), key=natural_order)
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
    """Return the names within the folder; a folder without objects is not there."""
    place = Place.of(address.rstrip("/") + "/")
    store = place.store
    import obstore

    with errors_of(place, verb="list"):
        try:
            pages = obstore.list(store, prefix=place.key.rstrip("/") or None)
            keys = [each["path"] for objects in pages for each in objects]
        except obstore.exceptions.InvalidPathError as error:
            keys = keys_as_stored(place, error)
    if not keys:
        raise InputError(f"{place.name} has no objects below it; check the address")
    return [key.removeprefix(place.key) for key in keys]
