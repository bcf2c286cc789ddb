"""Opening rasters, whatever they come as."""

from __future__ import annotations

from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.coded_headers import check_gml
from vllm_mmout.geo.raster.files import MASK, PAM, FileWithNeighbours, Neighbours, SharedFile, neighbours_of
from vllm_mmout.geo.raster.formats import (
    JPEG2000,
    TIFF,
    GdalFormat,
    gdal_format,
    is_address,
    is_gdal_name,
    is_tiff,
    looks_like,
    shown,
)
from vllm_mmout.geo.raster.gdal import open_gdal, open_gdal_name
from vllm_mmout.geo.raster.picture import may_be_picture, read_picture
from vllm_mmout.geo.raster.raster import Raster
from vllm_mmout.geo.raster.segments import UnknownStorageError
from vllm_mmout.geo.raster.sidecars import find_world_file
from vllm_mmout.geo.raster.tiff import open_tiff
from vllm_mmout.geo.raster.windowed import OpenArray, OpenRaster

__all__ = ["OpenRaster", "open_raster", "read_raster"]

_HEAD = 512


def open_raster(source: str | Path | bytes | BinaryIO | Raster) -> OpenRaster:
    """Open a raster to read it by windows: TIFF with what GeoTIFF and GDAL add to it, or a picture (PNG, JPEG, ...).

    JPEG 2000, VRT, NetCDF, and what GDAL has names for (`is_gdal_name`) are read through GDAL. A file that names
    others, as a VRT, is opened by its path alone.

    Of a TIFF only the parts that are asked for are read and decoded; a picture is decoded as a whole. Of a TIFF with
    several images the first is read, as GDAL does; a picture gives the bands of its mode (a palette its colours) and
    its first frame, in the orientation in which it is stored.

    Beside a TIFF that is given by its path may lie, as in GDAL, what else is known of it: a world file, PAM
    (``NAME.tif.aux.xml``) and a mask (``NAME.tif.msk``).

    Args:
        source: path of a file, or its address with http or https (see `FetchOptions`); its bytes; a file open for
            reading bytes, which is read in place where it can seek and stands at its start, and must stay open until
            the raster is closed; a raster in memory.

    Raises:
        InputError: the file is missing, a folder, empty, no image, truncated, or of an encoding that cannot be read.

    """
    if isinstance(source, Raster):
        return OpenArray(source, f"<raster of {source.height} x {source.width} pixels>")
    if is_address(source):
        return _open_address(str(source))
    if isinstance(source, str | Path):
        return open_gdal_name(str(source)) if is_gdal_name(str(source)) else _open_path(Path(source))
    if isinstance(source, bytes | bytearray | memoryview):
        return _open(BytesIO(source), f"<{len(source)} bytes>", owned=True)
    if not hasattr(source, "read"):
        raise InputError(f"a raster must come as path, bytes or open file, got {type(source).__name__}")
    return _open_file(source)


def read_raster(source: str | Path | bytes | BinaryIO) -> Raster:
    """Read a whole raster: TIFF with what GeoTIFF and GDAL add to it, or a picture (PNG, JPEG, WebP, ...).

    Of a TIFF with several images the first is read, as GDAL does; a picture gives the bands of its mode (a palette its
    colours) and its first frame, in the orientation in which it is stored.

    Args:
        source: path of a file, its bytes, or a file open for reading bytes.

    Returns:
        The pixels [bands, height, width] in the dtype of the file, and what the file says about them.

    Raises:
        InputError: the file is missing, a folder, empty, no image, truncated, or of an encoding that cannot be read.

    """
    with open_raster(source) as opened:
        return opened.read()


def _open_address(address: str) -> OpenRaster:
    from vllm_mmout.geo.raster.remote.http_file import open_remote

    return _open(open_remote(address), shown(address), owned=True)


def _open_path(path: Path) -> OpenRaster:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise InputError(f"no such file: {path} (looked from {Path.cwd()})") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder; give the file in it") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise InputError(f"cannot open {str(path)!r}: {error}") from error
    return _open(file, str(path), owned=True, path=path, neighbours=neighbours_of(path))


def _open_file(file: BinaryIO) -> OpenRaster:
    name = getattr(file, "name", None)
    named = name if isinstance(name, str) else None
    if _in_place(file):
        size = file.seek(0, 2)
        file.seek(0)
        neighbours = file.neighbours if isinstance(file, FileWithNeighbours) else None
        return _open(file, named or f"<file of {size} bytes>", owned=False, neighbours=neighbours)
    data: Any = file.read()
    if isinstance(data, str):
        raise InputError(f"{named or 'the file'} is open for text; open it with mode 'rb'")
    if not isinstance(data, bytes):
        raise InputError(
            f"reading {named or 'the file'} gives {type(data).__name__}, not bytes; give its path, or the array"
        )
    return _open(BytesIO(data), named or f"<file of {len(data)} bytes>", owned=True)


def _in_place(file: BinaryIO) -> bool:
    """Whether a file can be read where it is: it seeks, stands at its start, and gives bytes."""
    if not all(hasattr(file, method) for method in ("seekable", "seek", "tell")):
        return False
    return file.seekable() and file.tell() == 0 and isinstance(file.read(0), bytes)


def _open(
    file: BinaryIO, name: str, *, owned: bool, path: Path | None = None, neighbours: Neighbours | None = None
) -> OpenRaster:
    with ExitStack() as stack:
        shared = SharedFile(file, name, owned=owned)
        stack.callback(shared.close)
        head = shared.read_at(0, _HEAD)
        if is_tiff(head):
            try:
                opened = open_tiff(shared, neighbours)
            except UnknownStorageError as refusal:
                return _open_odd_tiff(shared, path, refusal, neighbours)
            stack.pop_all()  # the raster closes it
            return opened
        found = gdal_format(head)
        if found is not None and (found.alone or path is not None):
            return _open_through_gdal(found, shared, path)
        raster = read_picture(BytesIO(shared.read_at(0, shared.size)), name) if may_be_picture(head) else None
    if raster is not None:
        return OpenArray(raster, name)
    if not head:
        raise InputError(f"{name} is empty")
    raise InputError(f"{name} is not an image that can be read: it looks like {looks_like(head)}")


def _open_through_gdal(found: GdalFormat, file: SharedFile, path: Path | None) -> OpenRaster:
    """Open a file through GDAL: by its path, so that it finds what lies beside, or what it holds."""
    if found is JPEG2000:
        check_gml(file)
    if path is None:
        return open_gdal(file.name, "", found.drivers, file.read_at(0, file.size))
    return open_gdal(file.name, str(path.absolute()), found.drivers)


def _open_odd_tiff(
    file: SharedFile, path: Path | None, refusal: UnknownStorageError, neighbours: Neighbours | None
) -> OpenRaster:
    """Open a TIFF that is stored in a way that GDAL alone may know."""
    if path is None and neighbours is not None and _are_there(neighbours):
        raise refusal  # GDAL, which gets the bytes, would not see them
    try:
        return _open_through_gdal(TIFF, file, path)
    except InputError:
        raise refusal from None


def _are_there(neighbours: Neighbours) -> bool:
    """Whether a TIFF has files beside it that say more of it."""
    found = (neighbours.appended(PAM), neighbours.appended(MASK), find_world_file(neighbours))
    for file in found:
        if file is not None:
            file.close()
    return any(file is not None for file in found)
