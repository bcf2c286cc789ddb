"""Open rasters from paths, addresses, bytes, open files or arrays, and read the size that a header declares."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Final, cast

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.coded_headers import check_gml
from vllm_mmout.geo.raster.files import (
    MASK,
    PAM,
    FileWithNeighbours,
    HeaderFile,
    Neighbours,
    SharedFile,
    neighbours_of,
)
from vllm_mmout.geo.raster.formats import (
    JPEG,
    JPEG2000,
    TIFF,
    ZIP,
    GdalFormat,
    format_of_header,
    gdal_format,
    in_bucket,
    is_address,
    is_gdal_name,
    is_tiff,
    is_zarr,
    without_secrets,
)
from vllm_mmout.geo.raster.gdal import open_gdal, open_gdal_name, open_raw
from vllm_mmout.geo.raster.picture import DeclaredSize, declared_picture, may_be_picture, read_picture
from vllm_mmout.geo.raster.products.recognition import with_product
from vllm_mmout.geo.raster.raster import Raster
from vllm_mmout.geo.raster.segments import UnknownStorageError
from vllm_mmout.geo.raster.sidecars import find_world_file
from vllm_mmout.geo.raster.tags import Directory, read_directories
from vllm_mmout.geo.raster.tiff import open_tiff, with_neighbours
from vllm_mmout.geo.raster.unread_formats import no_image
from vllm_mmout.geo.raster.windowed import OpenArray, OpenRaster
from vllm_mmout.geo.raster.zarr.opened import check_zarr_address, open_zarr_folder, open_zarr_zip

__all__ = ["DeclaredSize", "OpenRaster", "declared_size", "open_raster", "read_raster"]

_HEAD = 512  # bytes read to recognise the format


def open_raster(source: str | PurePath | bytes | BinaryIO | Raster) -> OpenRaster:
    """Open a raster, such as a GeoTIFF or a picture (PNG, JPEG, ...), for reading by windows.

    A Zarr store is a folder, or a zip file that is recognised by its content. JPEG 2000, VRT, NetCDF, ENVI, ERDAS
    IMAGINE, PCIDSK and GDAL's own names (`is_gdal_name`) are read through GDAL. A file that refers to other files, such
    as a VRT, must be given by its path. In a TIFF, the tags of GeoTIFF and GDAL are read.

    Of a TIFF, only the requested parts are read and decoded; a picture is decoded whole. If a TIFF holds several
    images, the first is read, as GDAL does. A picture yields the bands of its mode (RGB for a palette) and its first
    frame, in the stored orientation.

    For a path, a world file, a PAM file (``NAME.tif.aux.xml``) and a mask (``.msk``) in the folder are read too.

    Args:
        source: path of a file, its address with http or https (see `FetchOptions`) or in a bucket (``s3://``,
            ``gs://``, ``az://``), its bytes, a file open for reading bytes, or a raster in memory. A seekable file at
            position 0 is read in place and must stay open until the raster is closed. The raster closes it if its
            attribute ``closes_with_raster`` is True.

    Raises:
        InputError: the file is missing, a folder, empty, not an image, truncated, or in an unknown encoding.

    """
    if isinstance(source, Raster):
        return OpenArray(source, f"<raster of {source.height} x {source.width} pixels>")
    if is_address(source) or in_bucket(source):
        return with_product(_open_address(str(source)), None)
    if isinstance(source, str | PurePath):
        gdal_name = is_gdal_name(str(source))
        raster = open_gdal_name(str(source)) if gdal_name else _open_path(Path(source))
        return with_product(raster, None if gdal_name else Path(source))
    if isinstance(source, bytes | bytearray | memoryview):
        return _open(BytesIO(source), f"<{len(source)} bytes>", owned=True)
    if not hasattr(source, "read"):
        raise InputError(f"a raster must be a path, bytes or an open file, got {type(source).__name__}")
    return with_product(_open_file(source), None)


def read_raster(source: str | Path | bytes | BinaryIO) -> Raster:
    """Read a whole raster from any source that `open_raster` accepts.

    Returns:
        The pixels [bands, height, width] in the dtype of the file, and their metadata.

    Raises:
        InputError: the file cannot be opened (see `open_raster`), or its pixels are damaged.

    """
    with open_raster(source) as opened:
        return opened.read()


def _open_address(address: str) -> OpenRaster:
    from vllm_mmout.geo.raster.remote.buckets.bucket_file import open_in_bucket
    from vllm_mmout.geo.raster.remote.http_file import open_remote

    check_zarr_address(without_secrets(address))
    file = open_in_bucket(address) if in_bucket(address) else open_remote(address)
    return _open(cast("BinaryIO", file), without_secrets(address), owned=True)


def _open_path(path: Path) -> OpenRaster:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise InputError(f"no such file: {path} (looked from {Path.cwd()})") from None
    except IsADirectoryError:
        if is_zarr(path):
            return open_zarr_folder(path)
        raise InputError(f"{path} is a folder; give the file in it") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise InputError(f"cannot open {str(path)!r}: {error}") from error
    return _open(file, str(path), owned=True, path=path, neighbours=neighbours_of(path))


def _open_file(file: BinaryIO) -> OpenRaster:
    name = getattr(file, "name", None)
    file_name = name if isinstance(name, str) else None
    if _in_place(file):
        size = file.seek(0, 2)
        file.seek(0)
        neighbours = file.neighbours if isinstance(file, FileWithNeighbours) else None
        owned = getattr(file, "closes_with_raster", False)
        return _open(file, file_name or f"<file of {size} bytes>", owned=owned, neighbours=neighbours)
    data: Any = file.read()
    if isinstance(data, str):
        raise InputError(f"{file_name or 'the file'} is open for text; open it with mode 'rb'")
    if not isinstance(data, bytes):
        raise InputError(
            f"reading {file_name or 'the file'} gives {type(data).__name__}, not bytes; give its path, or the array"
        )
    return _open(BytesIO(data), file_name or f"<file of {len(data)} bytes>", owned=True)


def _in_place(file: BinaryIO) -> bool:
    """Return whether an open file can be read without a copy: it can seek, is at position 0, and yields bytes."""
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
            stack.pop_all()  # the raster closes the file
            return opened
        if head.startswith(ZIP) and (store := open_zarr_zip(shared)) is not None:
            stack.pop_all()
            return store
        file_format = gdal_format(head)
        if file_format is not None and (file_format.self_contained or path is not None):
            return _open_through_gdal(file_format, shared, path, neighbours)
        raster = read_picture(BytesIO(shared.read_at(0, shared.size)), name) if may_be_picture(head) else None
        if raster is not None:
            if neighbours is not None:
                raster = with_neighbours(raster, neighbours, world_first=not head.startswith(JPEG))
            return OpenArray(raster, name)
        raw = None if neighbours is None or file_format is not None else format_of_header(neighbours)
        if raw is not None and raw.drivers and path is not None:
            return open_raw(name, str(path.absolute()), raw, shared.size)
    raise no_image(head, name, raw)


def _open_through_gdal(
    file_format: GdalFormat, file: SharedFile, path: Path | None, neighbours: Neighbours | None
) -> OpenRaster:
    """Open a file through GDAL, by its path or else by its bytes. GDAL finds sidecar files only by the path."""
    if file_format is JPEG2000:
        check_gml(file)
    if path is None and neighbours is not None and _are_there(neighbours):
        raise InputError(
            f"{file.name} has a world file, {PAM} or {MASK} file beside it, which GDAL finds only by the file's path;"
            " give the path, or write them into the file, for example with gdal_translate"
        )
    if path is None:
        return open_gdal(file.name, "", file_format.drivers, file.read_at(0, file.size))
    return open_gdal(file.name, str(path.absolute()), file_format.drivers)


def _open_odd_tiff(
    file: SharedFile, path: Path | None, refusal: UnknownStorageError, neighbours: Neighbours | None
) -> OpenRaster:
    """Open a TIFF in an unusual encoding through GDAL. Raise the exception ``refusal`` if GDAL cannot open the TIFF."""
    try:
        return _open_through_gdal(TIFF, file, path, neighbours)
    except InputError:
        raise refusal from None


def _are_there(neighbours: Neighbours) -> bool:
    files = (neighbours.appended(PAM), neighbours.appended(MASK), find_world_file(neighbours))
    for file in files:
        if file is not None:
            file.close()
    return any(file is not None for file in files)


_MOST_BYTES: Final = 2**25
"""Largest accepted file header in bytes. Even a TIFF of two million tiles has a header of only 16 MB."""
_MOST_AVIF_BYTES: Final = 2**28
"""Largest accepted size of an AVIF file in bytes. Pillow reads the whole file to get the header."""
_MOST_BANDS: Final = 2**16 - 1
_LARGEST: Final = 2**29
"""Largest accepted strip or tile of a TIFF, in bytes after decompression."""


def declared_size(file: BinaryIO) -> DeclaredSize:
    """Return the raster size that a file's header declares, for any format that `open_raster` reads.

    A file of some kilobytes can declare a thousand billion pixels, a table that fills the memory, or a thousand
    directories at one offset, so time and memory do not depend on such numbers. Wherever possible the header is parsed
    by the code that reads the file later: if two parsers disagreed, a file could pass this check and still decode to
    a huge array. The file is left at position 0.
    """
    file.seek(0)
    name = getattr(file, "name", None)
    try:
        if not isinstance(name, str):
            name = f"<file of {file.seek(0, 2)} bytes>"
            file.seek(0)
        return _declared(file, name)
    finally:
        file.seek(0)


def _declared(file: BinaryIO, name: str) -> DeclaredSize:
    head = file.read(_HEAD)
    most = _MOST_AVIF_BYTES if head[4:8] == b"ftyp" else _MOST_BYTES
    header = SharedFile(cast("BinaryIO", HeaderFile(file, name, most)), name, owned=False)
    if is_tiff(head):
        return _of_tiff(header)
    if head.startswith(ZIP) and (store := open_zarr_zip(header)) is not None:
        return DeclaredSize(*store.size, store.count, store.dtype.itemsize, store.block_bytes)
    size = declared_picture(head, header)
    if size is None:
        raise no_image(head, name)
    return size


def _of_tiff(file: SharedFile) -> DeclaredSize:
    """Return the size that the header of a TIFF declares for its first image."""
    binary = cast("BinaryIO", file)
    directory = read_directories(binary, file.name)[0]
    size = _by_tags(directory, file)
    plain = _numbers(directory, file, 259, 1)[0] == 1  # uncompressed segments are read in pieces
    if size.at_once > _LARGEST and not plain:
        return size
    try:
        with open_tiff(file) as raster:
            return DeclaredSize(*raster.size, raster.count, raster.dtype.itemsize, raster.block_bytes)
    except UnknownStorageError:  # GDAL may be able to read it
        return size


def _by_tags(directory: Directory, file: SharedFile) -> DeclaredSize:
    height, width = (_numbers(directory, file, code, 0)[0] for code in (257, 256))
    bands = _numbers(directory, file, 277, 1)[0]
    if bands > _MOST_BANDS:
        raise InputError(f"{file.name} is a damaged TIFF: it has {bands} bands, and a TIFF has at most {_MOST_BANDS}")
    itemsize = -(-max(_numbers(directory, file, 258, 1)) // 8)
    rows, columns = min(_numbers(directory, file, 278, height)[0], height), width
    if {322, 323} & directory.entries.keys():
        rows, columns = (_numbers(directory, file, code, 0)[0] for code in (323, 322))
    together = 1 if _numbers(directory, file, 284, 1)[0] == 2 else bands
    return DeclaredSize(height, width, bands, itemsize, rows * columns * together * itemsize)


def _numbers(directory: Directory, file: SharedFile, code: int, default: int) -> Sequence[int]:
    tag = directory.tag(cast("BinaryIO", file), code)
    if tag is None:
        return (default,)
    if not isinstance(tag.value, tuple) or not all(isinstance(value, int) and value >= 0 for value in tag.value):
        raise InputError(f"{file.name} is a damaged TIFF: tag {code} is not a number")
    return cast("Sequence[int]", tag.value) or (default,)
