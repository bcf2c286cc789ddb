"""obstore's store for an address. Each process has a single store per bucket.

Credentials come from the environment of the process (AWS_*, GOOGLE_*, AZURE_*) or from the machine's role, never from
an address.
"""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.formats import BUCKETS, in_bucket, without_secrets
from vllm_mmout.geo.raster.remote.buckets.faults import errors_of
from vllm_mmout.geo.raster.remote.fetch_options import FetchOptions

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_BUCKET = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_WHOLE = 10
"""Longest duration of a request, as a multiple of the timeout. Within each timeout some bytes must arrive."""
_LONGEST_PAUSE_S = 30


@dataclass(frozen=True, slots=True)
class Place:
    """Scheme, bucket and key of an address in a bucket, or of a local path."""

    scheme: str
    """Scheme of the address: "s3", "gs", "az", or "file" for a local path."""
    bucket: str
    """Name of the bucket, "" for a local path."""
    key: str
    """Part of the address after the bucket, without URL escapes. The key of a folder ends with "/"."""

    @classmethod
    def of(cls, address: str | os.PathLike[str]) -> Self:
        """Parse an address in a bucket, or a local path. Raise InputError if the address is invalid."""
        text = os.fspath(address)
        if not in_bucket(text):
            folder = "/" if text.endswith(os.sep) and Path(text).absolute() != Path("/") else ""
            return cls("file", "", Path(os.path.abspath(text)).as_posix().lstrip("/") + folder)  # noqa: PTH100 - without ".."
        name, (scheme, _, rest) = without_secrets(text), text.strip().partition("://")
        bucket, _, key = rest.partition("/")
        if {"?", "#"} & set(rest) or "@" in bucket:
            raise InputError(f"{name} must have no user, query and fragment; credentials come from the environment")
        if not _BUCKET.fullmatch(bucket):
            raise InputError(f"{name} names no bucket; it must be {scheme.lower()}://bucket/key")
        fault = key_fault(key) or (None if key.isprintable() else "has a character that cannot be printed")
        if fault is not None:
            label = name if name.isprintable() else repr(name)
            raise InputError(f"{label} {fault}, and cannot be reached; correct it, or copy the object to another name")
        return cls(scheme.lower(), bucket, key)

    @property
    def name(self) -> str:
        """The address, or the absolute path, without secrets. It is safe to show in a message."""
        return f"/{self.key}" if self.scheme == "file" else f"{self.scheme}://{self.bucket}/{self.key}"

    @property
    def store(self) -> ObjectStore:
        """The store of obstore that reads and writes the bucket or the local disk."""
        options = FetchOptions.from_environment()
        if os.getpid() != _first_process():
            raise InputError(
                f"{self.name} cannot be reached in a process that was forked from one that had read buckets; start it"
                ' by spawning, as multiprocessing.get_context("spawn") does'
            )
        with errors_of(self):
            return _store(self.scheme, self.bucket, options)


def is_public() -> bool:
    """Return whether AWS_SKIP_SIGNATURE is set, so that S3 buckets are read without a signature."""
    return os.environ.get("AWS_SKIP_SIGNATURE", "").strip().lower() in ("1", "true", "on", "yes", "y")


def key_fault(key: str) -> str | None:
    """Return the reason why obstore rejects a key, as the end of a sentence, or None."""
    if any(part in ("", ".", "..") for part in key.removesuffix("/").split("/")) and key:
        return 'has an empty part of its path, or "." or ".."'
    if _CONTROL.search(key):
        return "has a control character"
    try:
        key.encode()
    except UnicodeEncodeError:  # a local file name may hold bytes that are not UTF-8
        return "is not UTF-8"
    return None


def address_fault(address: str) -> str | None:
    """Return an error message if an address in a bucket is invalid, or None."""
    try:
        Place.of(address)
    except InputError as error:
        return str(error)
    return None


def object_store(address: str | os.PathLike[str]) -> tuple[ObjectStore, str]:
    """Return obstore's store for an address or a local path, and the key of the object in that store.

    Args:
        address: the address of an object or a folder in a bucket (``s3://bucket/key``, ``gs://`` or ``az://``), or a
            local path. If a folder's address ends with "/", so does its key.

    Raises:
        InputError: the address is invalid, obstore is not installed, or obstore's environment variables are wrong.

    """
    place = Place.of(address)
    return place.store, place.key


@functools.cache
def _first_process() -> int:
    """Return the id of the process that first used a store.

    obstore's threads exist in that process only. In a fork of it a request would wait forever.
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
    # These are settings of the store, since settings of its HTTP client would override the environment variables.
    config: Any = {
        "connect_timeout": _milliseconds(options.timeout),
        "read_timeout": _milliseconds(options.timeout),
        "timeout": _milliseconds(_WHOLE * options.timeout),
    }
    retry: Any = {
        "max_retries": options.retries,
        "retry_timeout": timedelta(seconds=_WHOLE * options.timeout * (1 + options.retries)),
        "backoff": {
            "init_backoff": timedelta(seconds=options.backoff),
            "max_backoff": timedelta(seconds=_LONGEST_PAUSE_S),
            "base": 2,
        },
    }
    kind: Any = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[scheme]
    store: ObjectStore = kind(bucket, config=config, retry_config=retry)
    return store


def _milliseconds(seconds: float) -> str:
    return f"{max(1, round(1000 * seconds))}ms"
