"""Class `BucketFile`: object in a bucket that is fetched block by block while a program reads it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.remote.block_cache import BLOCK, Buffer
from vllm_mmout.geo.raster.remote.block_file import BlockFile
from vllm_mmout.geo.raster.remote.buckets.bucket_address import FileAddress
from vllm_mmout.geo.raster.remote.buckets.bucket_errors import errors_of, status_of
from vllm_mmout.geo.raster.remote.buckets.stores import store_of
from vllm_mmout.geo.raster.remote.fetch_options import FetchOptions

if TYPE_CHECKING:
    from obstore import ObjectMeta

_RANGE_NOT_SATISFIABLE = 416


class BucketFile(BlockFile):
    """Object in a bucket, open for reading by any number of threads.

    The object must not change while it is open: bytes of another version raise InputError.
    """

    def __init__(self, place: FileAddress, meta: ObjectMeta, head: bytes, limit: int | None = None) -> None:
        limit = FetchOptions.from_environment().limit if limit is None else limit
        super().__init__(place.name, meta["size"], limit, head)
        self._place = place
        self._meta = meta
        self._process = os.getpid()

    def _fetch(self, start: int, stop: int) -> Buffer:
        if os.getpid() != self._process:
            raise InputError(f"{self.name} was opened in another process; open it again in this one")
        meta, data = _part(self._place, start, stop, self._meta["e_tag"])
        if (meta["size"], meta["e_tag"]) != (self._meta["size"], self._meta["e_tag"]) or len(data) != stop - start:
            raise InputError(f"{self.name} was changed in its bucket while it was read; send it again")
        return data


def open_in_bucket(address: str | os.PathLike[str], limit: int | None = None) -> BucketFile:
    """Open an object in a bucket by its address: ``s3://bucket/key``, ``gs://...`` or ``az://...``.

    ``limit`` is the largest number of bytes that one read may return. If it is None, MMOUT_FETCH_LIMIT applies.

    Raises InputError if the object does not exist or is empty, the server refuses or fails, or the address is wrong.
    """
    place = FileAddress.of(address)
    if not place.key or place.key.endswith("/"):
        raise InputError(f"{place.name} is a folder; give the file in it")
    meta, head = _part(place, 0, BLOCK, None)
    return BucketFile(place, meta, bytes(head), limit)


def _part(place: FileAddress, start: int, stop: int, version: str | None) -> tuple[ObjectMeta, memoryview]:
    """Fetch an object's metadata and its bytes from ``start`` to ``stop``.

    Raise InputError if the object's ETag differs from ``version``, unless that is None.
    """
    store = store_of(place)  # raises InputError with a remedy if obstore is not installed
    import obstore

    options: Any = {"range": (start, stop)} if version is None else {"range": (start, stop), "if_match": version}
    with errors_of(place):
        try:
            answer = obstore.get(store, place.key, options=options)
            return answer.meta, memoryview(answer.bytes())
        except Exception as error:
            if status_of(error) != _RANGE_NOT_SATISFIABLE:
                raise
        fact = "was changed in its bucket while it was read; send it again" if start else "is empty"
        raise InputError(f"{place.name} {fact}")
