"""Opening rasters, whatever they come as."""

from __future__ import annotations

from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from vllm_mmout.errors import InputError
from vllm_mmout.raster.kind import is_tiff, looks_like
from vllm_mmout.raster.picture import read_picture
from vllm_mmout.raster.raster import Raster
from vllm_mmout.raster.shared_file import SharedFile
from vllm_mmout.raster.tiff import open_tiff
from vllm_mmout.raster.windowed import OpenArray, OpenRaster

__all__ = ["OpenRaster", "open_raster"]

_HEAD = 512


def open_raster(source: str | Path | bytes | BinaryIO | Raster) -> OpenRaster:
    """Open a raster to read it by windows: TIFF with what GeoTIFF and GDAL add to it, or a picture (PNG, JPEG, ...).

    Of a TIFF only the parts that are asked for are read and decoded; a picture is decoded as a whole. Of a TIFF with
    several images the first is read, as GDAL does; a picture gives the bands of its mode (a palette its colours) and
    its first frame, in the orientation in which it is stored.

    Args:
        source: path of a file; its bytes; a file open for reading bytes, which is read in place where it can seek and
            stands at its start, and must stay open until the raster is closed; a raster in memory.

    Raises:
        InputError: the file is missing, a folder, empty, no image, truncated, or of an encoding that cannot be read.

    """
    if isinstance(source, Raster):
        return OpenArray(source, f"<raster of {source.height} x {source.width} pixels>")
    if isinstance(source, str | Path):
        return _open_path(Path(source))
    if isinstance(source, bytes | bytearray | memoryview):
        return _open(BytesIO(source), f"<{len(source)} bytes>", owned=True)
    if not hasattr(source, "read"):
        raise InputError(f"a raster must come as path, bytes or open file, got {type(source).__name__}")
    return _open_file(source)


def _open_path(path: Path) -> OpenRaster:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise InputError(f"no such file: {path} (looked from {Path.cwd()})") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder; give the file in it") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise InputError(f"cannot open {str(path)!r}: {error}") from error
    return _open(file, str(path), owned=True)


def _open_file(file: BinaryIO) -> OpenRaster:
    name = getattr(file, "name", None)
    named = name if isinstance(name, str) else None
    if _in_place(file):
        size = file.seek(0, 2)
        file.seek(0)
        return _open(file, named or f"<file of {size} bytes>", owned=False)
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


def _open(file: BinaryIO, name: str, *, owned: bool) -> OpenRaster:
    with ExitStack() as stack:
        shared = SharedFile(file, name, owned=owned)
        stack.callback(shared.close)
        head = shared.read_at(0, _HEAD)
        if is_tiff(head):
            opened = open_tiff(shared)
            stack.pop_all()  # the raster closes it
            return opened
        raster = read_picture(BytesIO(shared.read_at(0, shared.size)), name) if head else None
    if raster is not None:
        return OpenArray(raster, name)
    if not head:
        raise InputError(f"{name} is empty")
    raise InputError(f"{name} is not an image that can be read: it looks like {looks_like(head)}")
