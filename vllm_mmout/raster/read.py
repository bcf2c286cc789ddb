"""Reading a picture or a raster that fits into memory."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from vllm_mmout.errors import InputError
from vllm_mmout.raster.kind import is_tiff, looks_like
from vllm_mmout.raster.picture import read_picture
from vllm_mmout.raster.tiff import read_tiff

if TYPE_CHECKING:
    from vllm_mmout.raster.raster import Raster

_HEAD = 512


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
    if isinstance(source, str | Path):
        return _read_path(Path(source))
    if isinstance(source, bytes | bytearray | memoryview):
        return _read(BytesIO(source), f"<{len(source)} bytes>")
    if not hasattr(source, "read"):
        raise InputError(f"a raster must come as path, bytes or open file, got {type(source).__name__}")
    name = getattr(source, "name", None)
    data = source.read()
    if not isinstance(data, bytes):
        raise InputError(f"{name or 'the file'} is open for text; open it with mode 'rb'")
    return _read(BytesIO(data), name if isinstance(name, str) else f"<file of {len(data)} bytes>")


def _read_path(path: Path) -> Raster:
    try:
        with path.open("rb") as file:
            return _read(file, str(path))
    except FileNotFoundError:
        raise InputError(f"no such file: {path} (looked from {Path.cwd()})") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder; give the file in it") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise InputError(f"cannot open {str(path)!r}: {error}") from error


def _read(file: BinaryIO, name: str) -> Raster:
    head = file.read(_HEAD)
    file.seek(0)
    if not head:
        raise InputError(f"{name} is empty")
    if is_tiff(head):
        return read_tiff(file, name)
    raster = read_picture(file, name)
    if raster is None:
        raise InputError(f"{name} is not an image that can be read: it looks like {looks_like(head)}")
    return raster
