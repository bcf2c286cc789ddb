"""Treat local paths and addresses in buckets alike."""

from __future__ import annotations

import os
from pathlib import Path, PurePath, PurePosixPath

from vllm_mmout.geo.raster.formats import in_bucket, is_zarr


class BucketPath(PurePosixPath):
    """Path-like address of an object or folder in a bucket. ``str()`` returns ``s3://bucket/key``."""

    def __str__(self) -> str:
        """Return the address, such as ``s3://bucket/key``."""
        scheme, _, rest = super().__str__().partition(":/")
        return f"{scheme}://{rest}"


def place_of(path: str | PurePath) -> Path | BucketPath:
    """Convert an address in a bucket to `BucketPath`, and any other path to `Path`."""
    if not in_bucket(path):
        return Path(path)
    scheme, _, rest = str(path).strip().partition("://")
    return BucketPath(f"{scheme.lower()}://{rest}")


def is_folder(path: str | PurePath) -> bool:
    """Return whether a path or address is a folder of files.

    It ends with "/", or is a whole bucket or a local folder. A local Zarr store counts as a file.
    """
    if str(path).endswith(os.sep):
        return True
    place = place_of(path)
    return (place.is_dir() and not is_zarr(place)) if isinstance(place, Path) else len(place.parts) == 2


def same_file(one: PurePath, other: PurePath) -> bool:
    """Return whether two local paths are the same existing file or folder, or whether two addresses are equal."""
    if isinstance(one, Path) and isinstance(other, Path):
        return one.exists() and other.exists() and one.samefile(other)
    return one == other
