"""What GDAL alone can open: names that are no files, and files that neither tifffile nor Pillow reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

EXTRA = 'pip install "vllm-mmout[gdal]"'

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
