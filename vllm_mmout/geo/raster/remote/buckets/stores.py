"""Create obstore's store for an address. Each process has a single store per bucket.

Credentials come from the environment of the process (AWS_*, GOOGLE_*, AZURE_*) or from the machine's role, never from
an address.
"""

from __future__ import annotations

import functools
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.formats import BUCKETS
from vllm_mmout.geo.raster.remote.buckets.bucket_address import FileAddress
from vllm_mmout.geo.raster.remote.buckets.bucket_errors import errors_of
from vllm_mmout.geo.raster.remote.fetch_options import FetchOptions
from vllm_mmout.retries import LONGEST_PAUSE_S

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_TIMEOUTS_PER_REQUEST = 10
"""Maximum duration of a request, as a multiple of the timeout. The timeout itself only limits a wait for more bytes."""


def is_public() -> bool:
    """Return whether AWS_SKIP_SIGNATURE is set, so that S3 buckets are read without a signature."""
    return os.environ.get("AWS_SKIP_SIGNATURE", "").strip().lower() in ("1", "true", "on", "yes", "y")


def store_of(place: FileAddress) -> ObjectStore:
    """Return obstore's store for the bucket of ``place``, or for the local disk if ``place`` is a local path.

    Raises InputError if obstore is not installed, or its environment variables are wrong.
    """
    options = FetchOptions.from_environment()
    if os.getpid() != _first_process():
        raise InputError(
            f"{place.name} cannot be reached in a process that was forked from one that had read buckets; start it"
            ' by spawning, as multiprocessing.get_context("spawn") does'
        )
    with errors_of(place):
        return _store(place.scheme, place.bucket, options)


def object_store(address: str | os.PathLike[str]) -> tuple[ObjectStore, str]:
    """Return the obstore store for an address or a local path, and the key of the object in that store.

    Args:
        address: the address of an object or a folder in a bucket (``s3://bucket/key``, ``gs://`` or ``az://``), or a
            local path. If a folder's address ends with "/", so does its key.

    Raises:
        InputError: the address is invalid, obstore is not installed, or obstore's environment variables are wrong.

    """
    place = FileAddress.of(address)
    return store_of(place), place.key


@functools.cache
def _first_process() -> int:
    """Return the id of the process that first used obstore. A fork of that process cannot use obstore.

    obstore's threads do not exist in a fork, so a request would wait forever.
    """
    return os.getpid()


@functools.cache
def _store(scheme: str, bucket: str, options: FetchOptions) -> ObjectStore:
    try:
        from obstore.store import AzureStore, GCSStore, LocalStore, S3Store
    except ImportError as error:
        kind_of_store = f"{BUCKETS[scheme]} ({scheme}://)" if scheme in BUCKETS else "a store"
        raise InputError(f'{kind_of_store} needs obstore; pip install "vllm-mmout[buckets]"') from error
    if scheme == "file":
        return LocalStore()
    # Settings of the HTTP client would override the environment variables, so these are settings of the store.
    config: Any = {
        "connect_timeout": _milliseconds(options.timeout),
        "read_timeout": _milliseconds(options.timeout),
        "timeout": _milliseconds(_TIMEOUTS_PER_REQUEST * options.timeout),
    }
    retry: Any = {
        "max_retries": options.retries,
        "retry_timeout": timedelta(seconds=_TIMEOUTS_PER_REQUEST * options.timeout * (1 + options.retries)),
        "backoff": {
            "init_backoff": timedelta(seconds=options.backoff),
            "max_backoff": timedelta(seconds=LONGEST_PAUSE_S),
            "base": 2,
        },
    }
    kind: Any = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[scheme]
    store: ObjectStore = kind(bucket, config=config, retry_config=retry)
    return store


def _milliseconds(seconds: float) -> str:
    return f"{max(1, round(1000 * seconds))}ms"
