"""Class `FileAddress`: parse and check addresses of objects in buckets."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.formats import in_bucket, without_secrets

_BUCKET = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class FileAddress:
    """Parsed address of an object or folder in a bucket, or of a local path."""

    scheme: str
    """Scheme of the address: "s3", "gs", "az", or "file" for a local path."""
    bucket: str
    """Name of the bucket, "" for a local path."""
    key: str
    """Path within the bucket, without URL escapes, or the local path without the leading "/". The key of a folder ends
    with "/"."""

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
        """Address (or absolute local path) without secrets, for use in messages."""
        return f"/{self.key}" if self.scheme == "file" else f"{self.scheme}://{self.bucket}/{self.key}"


def key_fault(key: str) -> str | None:
    """Return why obstore rejects a key, as a phrase such as "has a control character", or None if it is valid."""
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
    """Return an error message if an address in a bucket is invalid, or None if it is valid."""
    try:
        FileAddress.of(address)
    except InputError as error:
        return str(error)
    return None
