"""Read JSON documents of a STAC catalogue, up to a maximum size, and resolve the addresses in them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeAlias, cast
from urllib.parse import unquote, urljoin, urlsplit

from vllm_mmout.errors import InputError
from vllm_mmout.geo import (
    in_bucket,
    is_address,
    is_gdal_name,
    open_in_bucket,
    open_remote,
    without_secrets,
)
from vllm_mmout.models.inputs.input_forms import as_local_path, is_open_file

if TYPE_CHECKING:
    from vllm_mmout.models.inputs.catalogued import Opener

Json: TypeAlias = Mapping[str, Any]
MOST_BYTES: Final = 32 << 20
"""Maximum size of a JSON document in bytes. Larger documents are refused."""
_SUFFIXES: Final = (".json", ".geojson")
_ITEM_ADDRESS: Final = re.compile(r"/items/[^/]+/?$")
"""Pattern that matches the end of an item's address in a STAC API. Such an address lacks the suffix ".json"."""


@dataclass(frozen=True, slots=True)
class Document:
    """JSON object from a STAC catalogue, with the address against which its relative addresses are resolved."""

    content: Json
    base: str = ""
    """Address or path of the JSON document, or "" if unknown."""

    def resolve(self, href: str) -> str:
        """Convert an address in the document, which may be relative, to an absolute address or path.

        Raises:
            InputError: the address is relative and the document has none, or the document came from a network and the
                address names a local file.

        """
        href = href.strip()
        if "\0" in href or not href:
            raise InputError(f"the address {href!r} names no file; correct the item")
        try:
            scheme = urlsplit(href).scheme
        except ValueError as error:
            raise InputError(f"the address {href[:100]!r} is none ({error}); correct the item") from None
        if is_address(href) or in_bucket(href):
            return href
        remote = is_address(self.base) or in_bucket(self.base)
        absolute = bool(scheme) or is_gdal_name(href)
        if absolute and not href.lower().startswith("file:"):
            raise InputError(
                f"the address {href[:100]!r} is nothing that an item's file is read from; give https://, s3://, gs://,"
                " az://, or a path"
            )
        if remote:
            if absolute or href.startswith(("/", "\\")):
                raise InputError(
                    f"the address {href[:100]!r} is that of a local file, and the item is from"
                    f" {without_secrets(self.base)}; to use local files, save the item and remove its link rel=self"
                )
            return _joined(self.base, href)
        path = as_local_path(href)
        if path.is_absolute():
            return str(path)
        if not self.base:
            raise InputError(
                f"the address {href[:100]!r} is relative, and the address of the item is unknown; give the item's path"
                " or address, or a link rel=self in it"
            )
        beside = as_local_path(self.base).parent
        plain = beside / unquote(str(path))  # an address may write # as %23
        return str(plain if plain != beside / path and plain.is_file() else beside / path)


def _joined(base: str, href: str) -> str:
    """Resolve a relative address against ``base``, the address of a document on a server or in a bucket."""
    scheme, _, rest = base.strip().partition("://")
    return f"{scheme}://{urljoin(f'https://{rest}', href).removeprefix('https://')}"


def as_number(value: Any) -> float | None:
    """Return a JSON value as a finite float, or None if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer of hundreds of digits
        return None
    return number if math.isfinite(number) else None


def may_be_document(data: Any) -> bool:
    """Return whether a path, address or open file may be a JSON document. Only the name is checked."""
    name = data if isinstance(data, str | PurePath) else getattr(data, "name", None) if is_open_file(data) else None
    if not isinstance(name, str | PurePath):
        return False
    text = str(name)
    if is_address(text):
        path = urlsplit(text).path if "[" not in text else text
        return path.lower().endswith(_SUFFIXES) or _ITEM_ADDRESS.search(path) is not None
    return text.lower().endswith(_SUFFIXES)


def read_document(data: Any, opener: Opener | None = None) -> Document | None:
    """Read a JSON object from a path, an address or an open file. Return None for data that does not begin with "{".

    Raises:
        InputError: the document cannot be read, is too large, or is no JSON although it begins like JSON.

    """
    if is_open_file(data):
        return _parsed(data, str(getattr(data, "name", "")), "")
    text = str(data)
    with closing((opener or UNRESTRICTED).document(text)) as file:
        return _parsed(file, without_secrets(text), text)


class _UnrestrictedOpener:
    """Opener without restrictions, for the user of this process: it opens local files and any address."""

    def document(self, address: str) -> BinaryIO:
        """Open a document at an address or a path."""
        if is_address(address):
            return open_remote(address)
        if in_bucket(address):
            return cast("BinaryIO", open_in_bucket(address))
        try:
            return as_local_path(address).open("rb")
        except OSError as error:
            raise InputError(f"cannot read {address}: {error.strerror}; give the path of an item") from error

    def file(self, address: str) -> str:
        """Return ``address`` unchanged. The file is opened later, when the model's input is read."""
        return address


UNRESTRICTED: Final = _UnrestrictedOpener()


def _parsed(file: BinaryIO, name: str, base: str) -> Document | None:
    file.seek(0)
    try:
        data = file.read(MOST_BYTES + 1)
    finally:
        file.seek(0)
    if not data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        return None
    if len(data) > MOST_BYTES:
        raise InputError(f"{name} has more than {MOST_BYTES >> 20} MiB, more than an item or a page of items needs")
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name} is no valid JSON: {str(error) or type(error).__name__}") from error
    return Document(content, base)
