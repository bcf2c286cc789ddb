"""What a file is, by its name (addresses, names of GDAL's, bands, rasters of a folder) and by its first bytes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote, urlsplit

from vllm_mmout.errors import InputError

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.files import Neighbours

_SCHEMES = ("http://", "https://")
_LONGEST_NAME = 200
"""Characters of a name that a client gave."""
_DATA_WITHIN = re.compile(r'(?:netcdf|hdf5):(?:"(?P<file>[^"]*)"|(?P<plain>[^":]*)):(?P<data>.*)', re.IGNORECASE)
"""GDAL's name of data within a file."""


def is_address(source: Any) -> bool:
    """Whether something is the address of a file on a server."""
    return isinstance(source, str) and source.lstrip().lower().startswith(_SCHEMES)


BUCKETS = {"s3": "a bucket of S3", "gs": "a bucket of Google Cloud Storage", "az": "a container of Azure"}
"""Schemes of addresses in buckets, and what those are called."""


def in_bucket(source: Any) -> bool:
    """Whether something is the address of an object, or a folder, in a bucket: ``s3://``, ``gs://``, ``az://``."""
    return isinstance(source, str | PurePath) and str(source).lstrip().lower().startswith(tuple(_STORES))


def printable_name(name: str) -> str:
    """The last part of a name, with "_" for what cannot be printed; "" where nothing is left."""
    last = PurePosixPath(name.replace("\\", "/")).name if not name.startswith("<") else name
    return "".join(letter if letter.isprintable() else "_" for letter in last)[:_LONGEST_NAME]


def without_secrets(address: str) -> str:
    """An address as it may stand in a message: without user, password, query and fragment, which may be secrets."""
    if not is_address(address) and not in_bucket(address):
        return address
    scheme, _, rest = address.strip().partition("://")
    place = rest.partition("#")[0].partition("?")[0]
    host, slash, path = place.partition("/")
    return f"{scheme.lower()}://{host.rpartition('@')[2]}{slash}{path}"


def file_stem(source: Any) -> str:
    """The name, without its suffix, of the file that a path or an address names; "" where it names none.

    Of data within a file, as ``NETCDF:"file.nc":group/variable``, it is ``file_group_variable``.
    """
    within = _DATA_WITHIN.match(source) if isinstance(source, str) else None
    if within is not None:
        parts = [PurePosixPath(within["file"] or within["plain"]).stem, *re.findall(r"\w+", within["data"])]
        return "_".join(part for part in parts if part)
    if in_bucket(source):
        path = without_secrets(str(source)).partition("://")[2].partition("/")[2]
    elif is_address(source):
        path = unquote(without_secrets(source).partition("://")[2].partition("/")[2])
    else:
        found = Path(source).stem if isinstance(source, str | os.PathLike) else ""
        return "" if found == ".." else found
    found = PurePosixPath(path).stem
    return found if found.isprintable() and found != ".." else ""


_TOKEN = re.compile(r"B\d{1,2}A?", re.IGNORECASE)
"""A band of Landsat ("B4"), Sentinel-2 and HLS ("B04", "B8A")."""
_SPLIT = re.compile(r"[._\- ]+")
_LEADING_ZEROS = re.compile(r"(?<!\d)0+(?=\d)")
_NUMBER = re.compile(r"(\d+)")


def band_of_file(name: str) -> str:
    """The name that a file gives its band: the last part that reads as one, else all of its stem.

    "B4", "B02", "B8A" of ``LC08_L2SP_193024_20200101_20200113_02_T1_SR_B4.TIF``,
    ``T32TQM_20200101T100000_B02_10m.jp2``, ``HLS.S30.T14RKV.2020123T170851.v2.0.B8A.tif``; "red" of
    ``NETCDF:"scene.nc":red``.
    """
    if within := _DATA_WITHIN.match(name):
        return re.split(r"[:/]", within["data"])[-1]
    path = unquote(urlsplit(name).path) if "://" in name else name
    stem = PurePath(path).stem
    tokens = [token for token in _SPLIT.split(stem) if _TOKEN.fullmatch(token)]
    return tokens[-1] if tokens else stem


def band_key(name: str) -> str:
    """The name without a difference between "B2", "b02" and "B02"."""
    return _LEADING_ZEROS.sub("", name.casefold())


def natural_order(name: str) -> tuple[tuple[int, int, str], ...]:
    """What to sort names by, so that "B2" comes before "B10"."""
    parts = _NUMBER.split(name.casefold())
    return (*((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts), (0, 0, name))


RASTER_SUFFIXES = (".tif", ".tiff", ".jp2", ".vrt")
"""What is taken for a raster in a folder; metadata, overviews and quicklooks beside them are passed over."""

_PRODUCT = ("R*m", "IMG_DATA", "IMG_DATA/R*m", "GRANULE/*/IMG_DATA", "GRANULE/*/IMG_DATA/R*m")
"""Where a Sentinel-2 product has its bands, seen from one of its folders; those of level 2 in a folder a resolution."""


def rasters_in(folder: Path) -> list[Path]:
    """The rasters directly in a folder, "B2" before "B10"."""
    return _inside(folder, lambda path: path.suffix.lower() in RASTER_SUFFIXES and path.is_file())


def rasters_of(folder: Path) -> list[Path]:
    """The rasters of the scene in a folder: those directly in it, or where a Sentinel-2 product has them."""
    found = rasters_in(folder)
    for pattern in _PRODUCT:
        if found:
            break
        places = sorted(place for place in folder.glob(pattern) if place.is_dir())
        found = [path for place in places for path in rasters_in(place)]
    return found


def folders_in(folder: Path) -> list[Path]:
    """The folders directly in a folder that hold rasters, or are Sentinel-2 products, in the same order."""
    return [path for path in _inside(folder, lambda path: path.is_dir()) if rasters_of(path)]


def _inside(folder: Path, wanted: Callable[[Path], bool]) -> list[Path]:
    try:  # of a folder that may be listed and no more, nothing but the names can be found out
        found = [path for path in folder.iterdir() if not path.name.startswith(".") and wanted(path)]
    except OSError as error:
        raise InputError(f"cannot read the folder {folder}: {error.strerror}") from error
    return sorted(found, key=lambda path: natural_order(path.name))


_STORES = {"s3://": "/vsis3/", "gs://": "/vsigs/", "az://": "/vsiaz/"}
_VSI = "/vsi"
_WITHIN = {"netcdf:": "netCDF", "hdf5:": "HDF5Image"}
"""Beginnings of the names of datasets within a file, and their drivers."""
_NAMED = ("GTiff", "JP2OpenJPEG", "VRT", "netCDF", "HDF5", "PNG", "JPEG", "HFA", "PCIDSK", "ENVI")
"""What may lie in an object store or a file system of GDAL's."""

Drivers: TypeAlias = tuple[tuple[str, ...], ...]
"""Names of GDAL's drivers that may open a file, and no other; of several groups the first that can opens it."""


@dataclass(frozen=True, slots=True)
class GdalFormat:
    """A format of files that is read through GDAL."""

    words: str
    """What it is called in an error."""
    drivers: Drivers
    alone: bool
    """Whether it can name no other file, so that it may come as bytes; data sets of HDF5 may lie in other files."""


JPEG = b"\xff\xd8"
"""How a JPEG begins."""
JPEG2000 = GdalFormat("JPEG 2000", (("JP2OpenJPEG",),), alone=True)
TIFF = GdalFormat("a TIFF", (("GTiff",),), alone=True)
_VRT = GdalFormat("a VRT of GDAL", (("VRT",),), alone=False)
_NETCDF = GdalFormat("NetCDF", (("netCDF",),), alone=False)
_HDF5 = GdalFormat("HDF5 or NetCDF-4", (("netCDF",), ("HDF5",)), alone=False)
_IMAGINE = GdalFormat("ERDAS IMAGINE", (("HFA",),), alone=False)
_PCIDSK = GdalFormat("PCIDSK", (("PCIDSK",),), alone=False)
_ASCII_GRID = GdalFormat("an ASCII grid", (("AAIGrid",),), alone=False)
_ENVI = GdalFormat("an ENVI raster", (("ENVI",),), alone=False)
_EHDR = GdalFormat("a raw raster of ESRI", (("EHdr",),), alone=False)
_IDRISI = GdalFormat("an IDRISI raster", (), alone=False)

_SIGNATURES = (
    (b"\x00\x00\x00\x0cjP  \r\n\x87\n", JPEG2000),
    (b"\xff\x4f\xff\x51", JPEG2000),  # a codestream without the boxes of JP2
    (b"CDF\x01", _NETCDF),
    (b"CDF\x02", _NETCDF),
    (b"CDF\x05", _NETCDF),
    (b"\x89HDF\r\n\x1a\n", _HDF5),
    (b"EHFA_HEADER_TAG", _IMAGINE),
    (b"PCIDSK  ", _PCIDSK),
)
_NCOLS = re.compile(rb"ncols\s+\d", re.IGNORECASE)
_HEADERS = (
    (".rdc", re.compile(rb"file format\s*:", re.IGNORECASE), _IDRISI),
    (".hdr", re.compile(rb"\s*ENVI\b"), _ENVI),
    (".hdr", re.compile(rb"(?s).*\b(nrows|NROWS)\s+\d"), _EHDR),
)
"""Suffix of a header beside a raw raster, how it begins, and the format."""
_HEADER_BYTES = 4096


def is_gdal_name(name: str) -> bool:
    """Whether a name is one of GDAL's rather than that of a file.

    These are object stores (``s3://``, ``gs://``, ``az://``, which `in_bucket` tells too), GDAL's file systems
    (``/vsi...``: archives, memory, the network) and datasets within a file (``NETCDF:"file.nc":variable``,
    ``HDF5:...``). They reach what a path does not: whoever takes names from strangers must refuse these.
    """
    return name.lower().startswith((_VSI, *_STORES, *_WITHIN))


def gdal_target(name: str) -> tuple[str, Drivers]:
    """What GDAL calls the thing of such a name, and the drivers that may open it."""
    for beginning, system in _STORES.items():
        if name.lower().startswith(beginning):
            return system + name[len(beginning) :], (_NAMED,)
    for beginning, driver in _WITHIN.items():
        if name.lower().startswith(beginning):
            return name, ((driver,),)
    return name, (_NAMED,)


def gdal_format(head: bytes) -> GdalFormat | None:
    """The format of a file that is read through GDAL, by its first bytes; None for any other."""
    for signature, found in _SIGNATURES:
        if head.startswith(signature):
            return found
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if _NCOLS.match(text):
        return _ASCII_GRID
    return _VRT if text.startswith(b"<") and b"<VRTDataset" in text else None


def format_of_header(neighbours: Neighbours) -> GdalFormat | None:
    """Return the format of a raw raster whose header lies beside it; None without a header of a known kind."""
    for header, beginning, found in _HEADERS:
        file = neighbours.replaced([header]) or neighbours.appended(header)
        if file is None:
            continue
        with closing(file):
            if beginning.match(file.read_at(0, _HEADER_BYTES)):
                return found
    return None


_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def is_tiff(head: bytes) -> bool:
    """Whether a file begins as TIFF or BigTIFF does, in either byte order."""
    return head.startswith(_TIFF)
