"""What the header of a raster declares, read before anything is decoded and without trust in it.

A file of some kilobytes can declare a thousand billion pixels, a table that fills the memory, or a thousand directories
that all lie in one place. Nothing here takes memory or time by such a number. A header is parsed by what reads the file
later, wherever that reads no more than the header: two parsers that differ would let through what the second decodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.coded_headers import boxes, coded_size, codestream
from vllm_mmout.geo.raster.files import SharedFile
from vllm_mmout.geo.raster.formats import JPEG2000, gdal_format, is_tiff, looks_like
from vllm_mmout.geo.raster.picture import DECODER_ERRORS, TOO_LARGE, open_picture, too_large
from vllm_mmout.geo.raster.segments import UnknownStorageError
from vllm_mmout.geo.raster.tags import Directory, read_directories
from vllm_mmout.geo.raster.tiff import open_tiff

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL import Image

_HEAD: Final = 512
_MOST_BYTES: Final = 2**25
"""Bytes that are read of a header; the tables of 500 million pixels in tiles of 16 x 16 are half of that."""
_WHOLE: Final = 2**28
"""Bytes of an AVIF, whose header Pillow does not read without the rest."""
_MOST_READS: Final = 20_000
"""Parts that are read of one; a TIFF with a thousand images takes half of them."""
_MOST_BANDS: Final = 2**16 - 1
_LARGEST: Final = 2**29
"""Bytes of a segment of a TIFF above which its tables are not looked at: it is refused for its size."""


@dataclass(frozen=True, slots=True)
class Declared:
    """The size of a raster, as its header has it."""

    height: int
    width: int
    bands: int
    itemsize: int
    """Bytes of one value."""
    at_once: int
    """Bytes that decoding takes at once: of a TIFF its largest segment, of a picture all of it."""

    @property
    def pixels(self) -> int:
        """Height times width."""
        return self.height * self.width


def declared(file: BinaryIO) -> Declared:
    """Read what a raster's header declares, of any format that `open_raster` reads from an open file."""
    file.seek(0)
    name = getattr(file, "name", None)
    try:
        if not isinstance(name, str):
            name = f"<file of {file.seek(0, 2)} bytes>"
            file.seek(0)
        return _declared(file, name)
    finally:
        file.seek(0)


def _declared(file: BinaryIO, name: str) -> Declared:
    head = file.read(_HEAD)
    header = SharedFile(
        cast("BinaryIO", _Header(file, name, _WHOLE if head[4:8] == b"ftyp" else _MOST_BYTES)), name, owned=False
    )
    if is_tiff(head):
        return _of_tiff(header)
    if gdal_format(head) is JPEG2000:
        return _of_jpeg2000(header)
    found = _of_webp(head, header) if head.startswith(b"RIFF") and head[8:12] == b"WEBP" else _of_picture(head, header)
    if found is not None:
        return found
    if not head:
        raise InputError(f"{name} is empty")
    raise InputError(f"{name} is not an image that can be read: it looks like {looks_like(head)}")


class _Header:
    """A file of which no more is read than a header has."""

    def __init__(self, file: BinaryIO, name: str, limit: int) -> None:
        self._file = file
        self._name = name
        self._limit = limit
        self._reads, self._bytes = _MOST_READS, limit
        self.seek, self.tell = file.seek, file.tell

    def read(self, count: int = -1) -> bytes:
        """Read on, fewer bytes where the file ends."""
        self._reads -= 1
        wanted = self._bytes + 1 if count < 0 else count
        data = self._file.read(min(wanted, self._bytes + 1))
        self._bytes -= len(data)
        if self._bytes < 0 or self._reads < 0:
            raise InputError(
                f"{self._name} has a header of more than {self._limit >> 20} MiB or {_MOST_READS} parts, as no image"
                " needs; write it anew, as with gdal_translate"
            )
        return data


def _of_tiff(file: SharedFile) -> Declared:
    """What a TIFF declares of its first image: by its tags, then, where they are sane, by what reads it."""
    binary = cast("BinaryIO", file)
    directory = read_directories(binary, file.name)[0]
    found = _by_tags(directory, file)
    plain = _number(directory, file, 259, 1) == 1  # such segments are read in pieces
    if found.at_once > _LARGEST and not plain:
        return found
    try:
        with open_tiff(file) as raster:
            return Declared(*raster.size, raster.count, raster.dtype.itemsize, raster.block_bytes)
    except UnknownStorageError:  # which GDAL may read
        return found


def _by_tags(directory: Directory, file: SharedFile) -> Declared:
    height, width = _number(directory, file, 257, 0), _number(directory, file, 256, 0)
    bands = _number(directory, file, 277, 1)
    if bands > _MOST_BANDS:
        raise InputError(f"{file.name} is a damaged TIFF: it has {bands} bands, a TIFF at most {_MOST_BANDS}")
    itemsize = -(-max(_numbers(directory, file, 258) or (1,)) // 8)
    rows, columns = min(_number(directory, file, 278, height), height), width
    if {322, 323} & directory.entries.keys():
        rows, columns = _number(directory, file, 323, 0), _number(directory, file, 322, 0)
    together = 1 if _number(directory, file, 284, 1) == 2 else bands
    return Declared(height, width, bands, itemsize, rows * columns * together * itemsize)


def _number(directory: Directory, file: SharedFile, code: int, default: int) -> int:
    return next(iter(_numbers(directory, file, code)), default)


def _numbers(directory: Directory, file: SharedFile, code: int) -> Sequence[int]:
    """The values of a tag, none if it is not there."""
    tag = directory.tag(cast("BinaryIO", file), code)
    if tag is None:
        return ()
    if not isinstance(tag.value, tuple) or not all(isinstance(value, int) and value >= 0 for value in tag.value):
        raise InputError(f"{file.name} is a damaged TIFF: tag {code} is no number")
    return cast("Sequence[int]", tag.value)


def _of_jpeg2000(file: SharedFile) -> Declared:
    """What the first codestream of a JPEG 2000 file declares."""
    at = next((at for kind, at in boxes(file.read_at) if kind == b"jp2c"), 0)
    found = codestream(file.read_at(at, 42))
    bits = [] if found is None else [(said & 0x7F) + 1 for said in file.read_at(at + 42, 3 * found.bands)[::3]]
    if found is None or not bits:
        raise InputError(f"{file.name} is a damaged JPEG 2000: it has no codestream with pixels; fetch it anew")
    at_once = math.prod(found.tile) * found.bands * 4 + found.table_bytes + file.size
    itemsize = 1 << math.ceil(math.log2(-(-max(bits) // 8)))
    return Declared(found.height, found.width, found.bands, itemsize, at_once)


def _of_picture(head: bytes, file: SharedFile) -> Declared | None:
    """What a picture declares to Pillow; None if it is none."""
    try:
        image = open_picture(cast("BinaryIO", file), head)
    except TOO_LARGE as error:
        raise too_large(file.name, error) from error
    except DECODER_ERRORS as error:
        raise _damaged(file, error) from error
    if image is None:
        return None
    deep = image.format == "PNG" and head[24:25] == b"\x10"
    itemsize = 2 if deep or image.mode.startswith("I;16") else 4 if image.mode in ("I", "F") else 1
    return _whole(file, image.size, _bands(image), itemsize)


def _of_webp(head: bytes, file: SharedFile) -> Declared:
    """What a WebP declares: Pillow would read all of it, and make room for its pixels."""
    size = coded_size(head)
    if size is None:
        raise _damaged(file, f"it begins with {head[12:16]!r}")
    alpha = (head[12:16] == b"VP8X" and head[20] & 0x10) or (head[12:16] == b"VP8L" and head[24] & 0x10)
    return _whole(file, (size[1], size[0]), 4 if alpha else 3, 1)


def _damaged(file: SharedFile, what: object) -> InputError:
    return InputError(f"{file.name} is a truncated or damaged picture: {what}; fetch it anew")


def _whole(file: SharedFile, size: tuple[int, int], bands: int, itemsize: int) -> Declared:
    """Of a picture, which is read and decoded as a whole."""
    width, height = size
    pixel = max(bands * itemsize, 4 if bands > 1 else 1)
    return Declared(height, width, bands, itemsize, height * width * pixel + file.size)


def _bands(image: Image.Image) -> int:
    """How many bands `read_picture` gives of a picture."""
    transparent = "transparency" in image.info
    if image.mode in ("1", "L", "I", "F") or image.mode.startswith("I;16"):
        return 2 if transparent and image.mode in ("1", "L") else 4 if transparent else 1
    if image.mode in ("LA", "La"):
        return 2
    return 4 if transparent or image.mode in ("RGBA", "RGBa", "PA") else 3
