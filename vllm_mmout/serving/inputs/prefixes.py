"""Prefixes, a list of bucket folders that clients may read or write with the server's own credentials."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo import FileAddress, in_bucket

_UNSAFE: Final = re.compile(r"%(2e|2f|5c)|\\", re.IGNORECASE)
"""Pattern of backslashes and of percent-escapes of dots and slashes. A storage server might read them as a path to
another folder."""


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Folders in buckets that clients may read from or write to. Each folder is an address that ends with "/"."""

    folders: tuple[str, ...]

    @classmethod
    def of(cls, addresses: Sequence[str], flag: str) -> Prefixes:
        """Create `Prefixes` from the values of a server flag. Raise OptionError if a value is not a folder in a bucket.

        ``flag`` is the name of the server flag, for error messages.
        """
        for address in addresses:
            if not in_bucket(address):
                raise OptionError(f"{flag} must be a folder in a bucket, as s3://bucket/scenes/, got {address!r}")
        try:
            return cls(tuple(f"{FileAddress.of(address).name.rstrip('/')}/" for address in addresses))
        except InputError as error:
            raise OptionError(f"{flag}: {error}") from None

    def allows(self, address: str) -> bool:
        """Return whether clients may read or write the file at an address. Raise InputError for a malformed address."""
        if not self.folders:
            return False
        name = FileAddress.of(address).name
        return not _UNSAFE.search(name) and not name.endswith("/") and name.startswith(self.folders)
