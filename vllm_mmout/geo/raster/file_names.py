"""Names of files: addresses on a server, the bands that file names say, and the rasters of a folder."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from vllm_mmout.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

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


_TOKEN = re.compile(r"B\d{1,2}A?", re.IGNORECASE)
"""A band of Landsat ("B4"), Sentinel-2 and HLS ("B04", "B8A")."""
_SPLIT = re.compile(r"[._\- ]+")
_LEADING_ZEROS = re.compile(r"(?<!\d)0+(?=\d)")
_NUMBER = re.compile(r"(\d+)")


def file_stem(name: str) -> str:
    """The name of a file without folders and suffix; ``name`` is a path or URL."""
    path = unquote(urlsplit(name).path) if "://" in name else name
    return PurePath(path).stem


def band_of_file(name: str) -> str:
    """The name that a file gives its band: the last part that reads as one, else all of its stem.

    Args:
        name: path or URL, as ``LC08_L2SP_193024_20200101_20200113_02_T1_SR_B4.TIF``,
            ``T32TQM_20200101T100000_B02_10m.jp2``, ``HLS.S30.T14RKV.2020123T170851.v2.0.B8A.tif``.

    Returns:
        "B4", "B02", "B8A" of these.

    """
    stem = file_stem(name)
    tokens = [token for token in _SPLIT.split(stem) if _TOKEN.fullmatch(token)]
    return tokens[-1] if tokens else stem


def folded(name: str) -> str:
    """The name without a difference between "B2", "b02" and "B02"."""
    return _LEADING_ZEROS.sub("", name.casefold())


def natural_order(name: str) -> tuple[tuple[int, int, str], ...]:
    """What to sort names by, so that "B2" comes before "B10"."""
    parts = _NUMBER.split(name.casefold())
    return (*((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts), (0, 0, name))


SUFFIXES = (".tif", ".tiff", ".jp2", ".vrt")
"""What is taken for a raster in a folder; metadata, overviews and quicklooks beside them are passed over."""

_PRODUCT = ("R*m", "IMG_DATA", "IMG_DATA/R*m", "GRANULE/*/IMG_DATA", "GRANULE/*/IMG_DATA/R*m")
"""Where a Sentinel-2 product has its bands, seen from one of its folders; those of level 2 in a folder a resolution."""


def rasters_in(folder: Path) -> list[Path]:
    """The rasters directly in a folder, "B2" before "B10".

    Raises:
        InputError: the folder cannot be read.

    """
    return _inside(folder, lambda path: path.suffix.lower() in SUFFIXES and path.is_file())


def rasters_of(folder: Path) -> list[Path]:
    """The rasters of the one scene that a folder holds: those directly in it, or where a Sentinel-2 product has them.

    Raises:
        InputError: a folder cannot be read.

    """
    found = rasters_in(folder)
    for pattern in _PRODUCT:
        if found:
            break
        places = sorted(place for place in folder.glob(pattern) if place.is_dir())
        found = [path for place in places for path in rasters_in(place)]
    return found


def folders_in(folder: Path) -> list[Path]:
    """The folders directly in a folder that hold rasters, in the same order.

    Raises:
        InputError: a folder cannot be read.

    """
    return [path for path in _inside(folder, lambda path: path.is_dir()) if rasters_in(path)]


def _inside(folder: Path, wanted: Callable[[Path], bool]) -> list[Path]:
    try:  # of a folder that may be listed and no more, nothing but the names can be found out
        found = [path for path in folder.iterdir() if not path.name.startswith(".") and wanted(path)]
    except OSError as error:
        raise InputError(f"cannot read the folder {folder}: {error.strerror}") from error
    return sorted(found, key=lambda path: natural_order(path.name))


_LONGEST_NAME = 200
"""Characters of a name that a client gave."""


def printable(name: str) -> str:
    """The last part of a name, with "_" for what cannot be printed; "" where nothing is left."""
    last = PurePosixPath(name.replace("\\", "/")).name if not name.startswith("<") else name
    return "".join(letter if letter.isprintable() else "_" for letter in last)[:_LONGEST_NAME]
