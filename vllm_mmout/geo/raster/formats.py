"""Recognise raster sources by their names, and file formats by the first bytes of a file.

The names are addresses, GDAL dataset names, and paths of files and folders.
"""

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
"""Largest number of characters kept of a file name that a client sent."""
_DATA_WITHIN = re.compile(r'(?:netcdf|hdf5):(?:"(?P<file>[^"]*)"|(?P<plain>[^":]*)):(?P<data>.*)', re.IGNORECASE)
"""Pattern of GDAL's names of datasets inside a file, such as ``NETCDF:"file.nc":variable``."""


def is_address(source: Any) -> bool:
    """Return whether ``source`` is an http or https address."""
    return isinstance(source, str) and source.lstrip().lower().startswith(_SCHEMES)


BUCKETS = {"s3": "a bucket of S3", "gs": "a bucket of Google Cloud Storage", "az": "a container of Azure"}
"""Maps the URL scheme of a bucket, such as "s3", to a description of the bucket for messages."""


def in_bucket(source: Any) -> bool:
    """Return whether ``source`` is the address of an object or folder in a bucket: ``s3://``, ``gs://``, ``az://``."""
    return isinstance(source, str | PurePath) and str(source).lstrip().lower().startswith(tuple(_STORES))


def printable_name(name: str) -> str:
    """Return the last part of a path or name, with "_" in place of unprintable characters; may be empty."""
    last = PurePosixPath(name.replace("\\", "/")).name if not name.startswith("<") else name
    return "".join(letter if letter.isprintable() else "_" for letter in last)[:_LONGEST_NAME]


def without_secrets(address: str) -> str:
    """Return an address for use in messages, without user, password, query and fragment, which may be secrets."""
    if not is_address(address) and not in_bucket(address):
        return address
    scheme, _, rest = address.strip().partition("://")
    place = rest.partition("#")[0].partition("?")[0]
    host, slash, path = place.partition("/")
    return f"{scheme.lower()}://{host.rpartition('@')[2]}{slash}{path}"


def file_stem(source: Any) -> str:
    """Return the name, without suffix, of the file at a path or address, or "" if the source does not name a file.

    For a dataset inside a file, such as ``NETCDF:"file.nc":group/variable``, it is ``file_group_variable``.
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
        stem = _stem(Path(source)) if isinstance(source, str | os.PathLike) else ""
        return "" if stem == ".." else stem
    stem = _stem(PurePosixPath(path))
    return stem if stem.isprintable() and stem != ".." else ""


def _stem(path: PurePath) -> str:
    """Return the name of a file without its suffix, or without both suffixes of a zipped store (``.zarr.zip``)."""
    return PurePath(path.stem).stem if path.suffix.lower() == ".zip" else path.stem


_TOKEN = re.compile(r"B\d{1,2}A?", re.IGNORECASE)
"""Pattern of a band name of Landsat ("B4"), Sentinel-2 and HLS ("B04", "B8A")."""
_SPLIT = re.compile(r"[._\- ]+")
_LEADING_ZEROS = re.compile(r"(?<!\d)0+(?=\d)")
_NUMBER = re.compile(r"(\d+)")


def band_of_file(name: str) -> str:
    """Return the band name in a file name: the last part that looks like a band name, else the whole stem.

    The result is "B4" for ``LC08_L2SP_193024_20200101_20200113_02_T1_SR_B4.TIF``, "B02" for
    ``T32TQM_20200101T100000_B02_10m.jp2``, "B8A" for ``HLS.S30.T14RKV.2020123T170851.v2.0.B8A.tif`` and "red" for
    ``NETCDF:"scene.nc":red``.
    """
    if within := _DATA_WITHIN.match(name):
        return re.split(r"[:/]", within["data"])[-1]
    path = unquote(urlsplit(name).path) if "://" in name else name
    stem = PurePath(path).stem
    tokens = [token for token in _SPLIT.split(stem) if _TOKEN.fullmatch(token)]
    return tokens[-1] if tokens else stem


def band_key(name: str) -> str:
    """Return a key for comparing band names, equal for "B2", "b02" and "B02"."""
    return _LEADING_ZEROS.sub("", name.casefold())


def natural_order(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key for names that puts "B2" before "B10"."""
    parts = _NUMBER.split(name.casefold())
    return (*((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts), (0, 0, name))


RASTER_SUFFIXES = (".tif", ".tiff", ".jp2", ".vrt")
"""File suffixes that count as rasters when a folder is listed. Metadata, quicklooks and other files are skipped."""

_PRODUCT = ("R*m", "IMG_DATA", "IMG_DATA/R*m", "GRANULE/*/IMG_DATA", "GRANULE/*/IMG_DATA/R*m")
"""Glob patterns of the folders with band files in a Sentinel-2 product, relative to any folder of the product.

Level 2 products have a band folder for each resolution, such as R10m."""


def rasters_in(folder: Path) -> list[Path]:
    """Return the rasters directly in a folder, in natural order ("B2" before "B10")."""
    return _inside(folder, lambda path: path.suffix.lower() in RASTER_SUFFIXES and path.is_file())


def rasters_of(folder: Path) -> list[Path]:
    """Return the rasters directly in a folder.

    If there are none, return the band files in the subfolders that a Sentinel-2 product has.
    """
    paths = rasters_in(folder)
    for pattern in _PRODUCT:
        if paths:
            break
        band_folders = sorted(place for place in folder.glob(pattern) if place.is_dir())
        paths = [path for place in band_folders for path in rasters_in(place)]
    return paths


def folders_in(folder: Path) -> list[Path]:
    """Return the folders directly in a folder that hold rasters or are Sentinel-2 products, in natural order."""
    return [path for path in _inside(folder, lambda path: path.is_dir()) if rasters_of(path)]


def _inside(folder: Path, condition: Callable[[Path], bool]) -> list[Path]:
    try:  # the condition fails too if the folder may be listed but not entered
        paths = [path for path in folder.iterdir() if not path.name.startswith(".") and condition(path)]
    except OSError as error:
        raise InputError(f"cannot read the folder {folder}: {error.strerror}") from error
    return sorted(paths, key=lambda path: natural_order(path.name))


_STORES = {"s3://": "/vsis3/", "gs://": "/vsigs/", "az://": "/vsiaz/"}
_VSI = "/vsi"
_DATASET_DRIVERS = {"netcdf:": "netCDF", "hdf5:": "HDF5Image"}
"""Maps the prefix of a GDAL dataset name, such as "netcdf:" in ``netcdf:"file.nc":variable``, to the GDAL driver that
opens the dataset."""
_ALLOWED_DRIVERS = ("GTiff", "JP2OpenJPEG", "VRT", "netCDF", "HDF5", "PNG", "JPEG", "HFA", "PCIDSK", "ENVI")
"""GDAL drivers that may open files in buckets and in GDAL's virtual file systems."""

Drivers: TypeAlias = tuple[tuple[str, ...], ...]
"""Groups of GDAL drivers that may open a file. The groups are tried in order until a driver can open the file."""


@dataclass(frozen=True, slots=True)
class GdalFormat:
    """A file format that is read through GDAL."""

    words: str
    """Name of the format in error messages."""
    drivers: Drivers
    """GDAL drivers that are allowed to open files of this format; empty if the format is refused."""
    self_contained: bool
    """Whether files of this format never refer to other files. Only such formats may be opened from bytes in memory."""


JPEG = b"\xff\xd8"
"""First bytes of a JPEG."""
JPEG2000 = GdalFormat("JPEG 2000", (("JP2OpenJPEG",),), self_contained=True)
TIFF = GdalFormat("a TIFF", (("GTiff",),), self_contained=True)
_VRT = GdalFormat("a VRT of GDAL", (("VRT",),), self_contained=False)
_NETCDF = GdalFormat("NetCDF", (("netCDF",),), self_contained=False)
_HDF5 = GdalFormat("HDF5 or NetCDF-4", (("netCDF",), ("HDF5",)), self_contained=False)
_IMAGINE = GdalFormat("ERDAS IMAGINE", (("HFA",),), self_contained=False)
_PCIDSK = GdalFormat("PCIDSK", (("PCIDSK",),), self_contained=False)
_ASCII_GRID = GdalFormat("an ASCII grid", (("AAIGrid",),), self_contained=False)
_ENVI = GdalFormat("an ENVI raster", (("ENVI",),), self_contained=False)
_EHDR = GdalFormat("a raw raster of ESRI", (("EHdr",),), self_contained=False)
_IDRISI = GdalFormat("an IDRISI raster", (), self_contained=False)

_SIGNATURES = (
    (b"\x00\x00\x00\x0cjP  \r\n\x87\n", JPEG2000),
    (b"\xff\x4f\xff\x51", JPEG2000),  # a bare codestream, without JP2 boxes
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
"""Header files of raw rasters, as (suffix of the header file, pattern of the file's first bytes, raster format)."""
_HEADER_BYTES = 4096


def is_gdal_name(name: str) -> bool:
    """Return whether a name is a GDAL dataset name rather than a file path.

    Such names are objects in buckets (``s3://``, ``gs://``, ``az://``, see also `in_bucket`), paths in GDAL's virtual
    file systems (``/vsi...``: archives, memory, the network) and datasets inside a file (``NETCDF:"file.nc":variable``,
    ``HDF5:...``). They give access to more than local files, so code that accepts names from strangers must refuse
    them.
    """
    return name.lower().startswith((_VSI, *_STORES, *_DATASET_DRIVERS))


def gdal_target(name: str) -> tuple[str, Drivers]:
    """Return GDAL's form of a user's dataset name, and the GDAL drivers that may open the dataset.

    The name must be accepted by `is_gdal_name`.
    """
    for beginning, system in _STORES.items():
        if name.lower().startswith(beginning):
            return system + name[len(beginning) :], (_ALLOWED_DRIVERS,)
    for beginning, driver in _DATASET_DRIVERS.items():
        if name.lower().startswith(beginning):
            return name, ((driver,),)
    return name, (_ALLOWED_DRIVERS,)


def gdal_format(head: bytes) -> GdalFormat | None:
    """Return the format of a file from its first bytes, or None if the format is not read through GDAL."""
    for signature, file_format in _SIGNATURES:
        if head.startswith(signature):
            return file_format
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if _NCOLS.match(text):
        return _ASCII_GRID
    return _VRT if text.startswith(b"<") and b"<VRTDataset" in text else None


def format_of_header(neighbours: Neighbours) -> GdalFormat | None:
    """Return the format of a raw raster from the header file beside it. Return None if no known header is found."""
    for header, beginning, file_format in _HEADERS:
        file = neighbours.replaced([header]) or neighbours.appended(header)
        if file is None:
            continue
        with closing(file):
            if beginning.match(file.read_at(0, _HEADER_BYTES)):
                return file_format
    return None


ZIP = b"PK\x03\x04"
"""First bytes of a zip file, which may hold a Zarr store."""
ZARR_METADATA = ("zarr.json", ".zgroup", ".zarray")
"""Names of the metadata files of Zarr formats 2 and 3. A folder with such a file is a Zarr group or array."""


def is_zarr(folder: Path) -> bool:
    """Return whether a folder is a Zarr group or array. Return False if access to the folder is denied.

    The root of a Zarr store is also a group or an array.
    """
    try:
        return any((folder / name).is_file() for name in ZARR_METADATA)
    except PermissionError:
        return False


_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def is_tiff(head: bytes) -> bool:
    """Return whether the first bytes of a file mark a TIFF or BigTIFF, in either byte order."""
    return head.startswith(_TIFF)
