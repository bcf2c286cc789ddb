"""Addresses of files that lie on a server: what is one, what may be said of one, what its file is called."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

_SCHEMES = ("http://", "https://")
_WITHIN = re.compile(r'(?:netcdf|hdf5):(?:"(?P<file>[^"]*)"|(?P<plain>[^":]*)):(?P<data>.*)', re.IGNORECASE)
"""GDAL's name of data within a file."""


def is_address(source: Any) -> bool:
    """Whether something is the address of a file on a server."""
    return isinstance(source, str) and source.lstrip().lower().startswith(_SCHEMES)


def shown(address: str) -> str:
    """An address as it may stand in a message: without user, password, query and fragment, which may be secrets.

    Args:
        address: the address; what is none comes back as it is.

    """
    if not is_address(address):
        return address
    scheme, _, rest = address.strip().partition("://")
    place = rest.partition("#")[0].partition("?")[0]
    host, slash, path = place.partition("/")
    return f"{scheme.lower()}://{host.rpartition('@')[2]}{slash}{path}"


def stem(source: Any) -> str:
    """The name, without its suffix, of the file that a path or an address names; "" where it names none.

    Of data within a file, as ``NETCDF:"file.nc":group/variable``, it is ``file_group_variable``.

    Args:
        source: a path, an address, or what has no name.

    """
    within = _WITHIN.match(source) if isinstance(source, str) else None
    if within is not None:
        parts = [PurePosixPath(within["file"] or within["plain"]).stem, *re.findall(r"\w+", within["data"])]
        return "_".join(part for part in parts if part)
    if not is_address(source):
        found = Path(source).stem if isinstance(source, str | os.PathLike) else ""
        return "" if found == ".." else found
    path = unquote(shown(source).partition("://")[2].partition("/")[2])
    found = PurePosixPath(path).stem
    return found if found.isprintable() and found != ".." else ""
