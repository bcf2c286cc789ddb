"""Places of files: paths on this machine, and addresses in buckets that behave like them."""

from __future__ import annotations

import os
from pathlib import Path, PurePath, PurePosixPath

from vllm_mmout.geo.raster.formats import in_bucket


class BucketPath(PurePosixPath):
    """The address of an object, or of a folder, in a bucket; as text it is ``s3://bucket/key``."""

    def __str__(self) -> str:
        """The address."""
        scheme, _, rest = super().__str__().partition(":/")
        return f"{scheme}://{rest}"


def place_of(path: str | PurePath) -> Path | BucketPath:
    """A path, or an address in a bucket, as what has names and suffixes."""
    if not in_bucket(path):
        return Path(path)
    scheme, _, rest = str(path).strip().partition("://")
    return BucketPath(f"{scheme.lower()}://{rest}")


def is_folder(path: str | PurePath) -> bool:
    """Whether a path names a folder: it ends with "/", is one on this machine, or a bucket as a whole."""
    if str(path).endswith(os.sep):
        return True
    place = place_of(path)
    return place.is_dir() if isinstance(place, Path) else len(place.parts) == 2


def same_file(one: PurePath, other: PurePath) -> bool:
    """Whether two names are those of one file that is there; of addresses whether they are equal."""
    if isinstance(one, Path) and isinstance(other, Path):
        return one.is_file() and other.is_file() and one.samefile(other)
    return one == other
