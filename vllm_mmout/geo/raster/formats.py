"""Formats of files by their first bytes, and what GDAL alone can open: names that are no files, and further formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

_STORES = {"s3://": "/vsis3/", "gs://": "/vsigs/", "az://": "/vsiaz/"}
_VSI = "/vsi"
_WITHIN = {"netcdf:": "netCDF", "hdf5:": "HDF5Image"}
"""Beginnings of the names of datasets within a file, and their drivers."""
_NAMED = ("GTiff", "JP2OpenJPEG", "VRT", "netCDF", "HDF5", "PNG", "JPEG")
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


JPEG2000 = GdalFormat("JPEG 2000", (("JP2OpenJPEG",),), alone=True)
TIFF = GdalFormat("a TIFF", (("GTiff",),), alone=True)
_VRT = GdalFormat("a VRT of GDAL", (("VRT",),), alone=False)
_NETCDF = GdalFormat("NetCDF", (("netCDF",),), alone=False)
_HDF5 = GdalFormat("HDF5 or NetCDF-4", (("netCDF",), ("HDF5",)), alone=False)

_SIGNATURES = (
    (b"\x00\x00\x00\x0cjP  \r\n\x87\n", JPEG2000),
    (b"\xff\x4f\xff\x51", JPEG2000),  # a codestream without the boxes of JP2
    (b"CDF\x01", _NETCDF),
    (b"CDF\x02", _NETCDF),
    (b"CDF\x05", _NETCDF),
    (b"\x89HDF\r\n\x1a\n", _HDF5),
)


def is_gdal_name(name: str) -> bool:
    """Whether a name is one of GDAL's rather than that of a file.

    These are object stores (``s3://``, ``gs://``, ``az://``), GDAL's file systems (``/vsi...``: archives, memory, the
    network) and datasets within a file (``NETCDF:"file.nc":variable``, ``HDF5:...``). They reach what a path does not:
    whoever takes names from strangers must refuse these.
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
    return _VRT if text.startswith(b"<") and b"<VRTDataset" in text else None


_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")

_REFUSED = (
    (b"\x89PNG", "a damaged PNG"),
    (b"\xff\xd8\xff", "a damaged JPEG"),
    (b"GIF8", "a damaged GIF"),
    (b"\x0e\x03\x13\x01", "HDF4; convert the dataset to GeoTIFF"),
    (b"GRIB", "GRIB; convert the field to GeoTIFF"),
    (b"NITF", "NITF; convert it to GeoTIFF"),
    (b"\x93NUMPY", "a NumPy array; load it with numpy.load and hand over the array"),
    (b"PK\x03\x04", "a ZIP archive (also .npz, .SAFE.zip); unpack it first"),
    (b"\x1f\x8b", "gzip; unpack it first"),
    (b"%PDF", "a PDF"),
    (b"<?xml", "XML"),
    (b"<html", "an HTML page, such as a server sends instead of a file"),
    (b"<!doctype html", "an HTML page, such as a server sends instead of a file"),
    (b"version https://git-lfs", "a Git LFS pointer; fetch the file with git lfs pull"),
)


def is_tiff(head: bytes) -> bool:
    """Whether a file begins as TIFF or BigTIFF does, in either byte order."""
    return head.startswith(_TIFF)


def looks_like(head: bytes) -> str:
    """What a file that is no readable image seems to be, in words."""
    known = _by_signature(head)
    if known is not None:
        return known
    if not any(head):
        return "nothing but zeros"
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:  # a character cut by the end of the head is no sign of binary data
            return f"binary data that begins with {head[:8].hex(' ')}"
        text = head[: error.start].decode()
    if all(character.isprintable() or character.isspace() for character in text):
        return f"text that begins with {text[:40]!r}"
    return f"binary data that begins with {head[:8].hex(' ')}"


def _by_signature(head: bytes) -> str | None:
    found = gdal_format(head)
    if found is not None:
        return f"{found.words}; convert it to GeoTIFF, or give it by its path"
    start = head.lstrip()[:32].lower()
    for signature, words in _REFUSED:
        if head.startswith(signature) or start.startswith(signature.lower()):
            return words
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "a damaged WebP"
    return None
