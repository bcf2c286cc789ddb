"""Prefixes: the folders of buckets that clients may name files in, which the server reaches with its credentials."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo import Place, in_bucket

_TRICKS: Final = re.compile(r"%(2e|2f|5c)|\\", re.IGNORECASE)
"""What a server that is less strict than S3 could understand as a way out of a folder."""


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Folders of buckets, each an address that ends with "/"; a name is below one by whole parts of its path."""

    folders: tuple[str, ...]

    @classmethod
    def of(cls, given: Sequence[str], flag: str) -> Prefixes:
        """Those that a flag was given; OptionError: one is no address of a folder in a bucket."""
        for address in given:
            if not in_bucket(address):
                raise OptionError(f"{flag} must be a folder in a bucket, as s3://bucket/scenes/, got {address!r}")
        try:
            return cls(tuple(f"{Place.of(address).name.rstrip('/')}/" for address in given))
        except InputError as error:
            raise OptionError(f"{flag}: {error}") from None

    def allows(self, address: str) -> bool:
        """Whether an address is a file below one; InputError: it is none that can be told to be."""
        if not self.folders:
            return False
        found = Place.of(address).name
        return not _TRICKS.search(found) and not found.endswith("/") and found.startswith(self.folders)
