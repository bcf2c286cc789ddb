"""Read pictures (PNG, JPEG, WebP, ...), or only the sizes that they declare, through Pillow."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.coded_headers import boxes, coded_size, codestream
from vllm_mmout.geo.raster.formats import JPEG2000, gdal_format
from vllm_mmout.geo.raster.orientation_and_palette import ORIENTATION_TAG, orientation_facts
from vllm_mmout.geo.raster.raster import Raster
from vllm_mmout.geo.raster.segments import DECODER_ERRORS as OF_SEGMENTS

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.files import SharedFile

PICTURE_ERRORS = (*OF_SEGMENTS, SyntaxError)
"""Exceptions that Pillow's decoders raise for damaged data. A broken PNG raises SyntaxError."""

_OTHER_FORMAT_ERRORS = (SyntaxError, IndexError, TypeError, struct.error)
"""Exceptions that Pillow's plugins raise for a file of another format."""
_TOO_LARGE = (Image.DecompressionBombError, Image.DecompressionBombWarning)
"""Exceptions that Pillow raises when it refuses to open a picture because the picture is too large."""
FORMATS = ("PNG", "JPEG", "MPO", "WEBP", "GIF", "BMP", "JPEG2000", "PPM", "AVIF")
"""Picture formats that are read through Pillow. Other formats are refused, such as EPS, for which Pillow would start a
PostScript interpreter."""
_AS_STORED = frozenset({"L", "RGB", "RGBA", "LA", "I;16", "I", "F"})
_ALPHA = {"LA": 2, "RGBA": 4}


@dataclass(frozen=True, slots=True)
class DeclaredSize:
    """Size of a raster as declared by its header."""

    height: int
    """Number of rows."""
    width: int
    """Number of columns."""
    bands: int
    """Number of bands."""
    itemsize: int
    """Bytes of one value."""
    at_once: int
    """Memory in bytes needed to decode the largest part of the file that is decoded at once.

    A part is a strip or tile of a TIFF, a tile of a JPEG 2000 or a block of a Zarr store. Any other picture is a
    single part."""

    @property
    def pixels(self) -> int:
        """Number of pixels, height times width."""
        return self.height * self.width


def may_be_picture(head: bytes) -> bool:
    """Return whether the first bytes of a file look like a picture of a known format."""
    return next(_plugins(head), None) is not None


def _opened(file: BinaryIO, head: bytes) -> Image.Image | None:
    """Open a picture without decoding it, or return None if its format is not known.

    Pillow's plugins are called directly, since ``Image.open`` would warn about large pictures or refuse them with its
    own message.
    """
    for plugin in _plugins(head):
        file.seek(0)
        try:
            return plugin(file, "")
        except _OTHER_FORMAT_ERRORS:
            continue
    return None


def _plugins(head: bytes) -> Iterator[Callable[[Any, str], Image.Image]]:
    Image.init()
    start = head[:16].ljust(16, b"\0")
    for plugin, accept in (Image.OPEN[name] for name in FORMATS if name in Image.OPEN):
        answer = True if accept is None else accept(start)
        if answer and not isinstance(answer, str):  # a string is a reason for refusal
            yield plugin


def read_picture(file: BinaryIO, name: str) -> Raster | None:
    """Read the first frame of a picture, or return None if its format is not known.

    Grey, RGB, 16-bit and floating-point pictures are read as stored. Bilevel pictures become grey of 0 and 255;
    palettes, CMYK, YCbCr and all other modes become RGB. Transparency becomes an alpha band. The EXIF orientation is
    not applied but kept in the metadata under GDAL's name.
    """
    try:
        image = _opened(file, file.read(16))
        if image is None:
            return None
        with image:
            _check_size(image, name)
            image.load()
            deep = _deep_png(image, file)
            metadata, assumed = _exif_orientation(image)
            array = np.asarray(_plain(image)) if deep is None else deep
    except InputError:
        raise
    except _TOO_LARGE as error:
        raise _too_large(name, error) from error
    except PICTURE_ERRORS as error:
        raise _damaged(name, error) from error
    return _raster(array, metadata, assumed)


def picture_raster(image: Image.Image) -> Raster:
    """Convert a picture opened with Pillow to a raster with the same bands that `read_picture` returns."""
    image.load()  # before reading its orientation, as Pillow turns a TIFF upright when it loads it
    return _raster(np.asarray(_plain(image)), *_exif_orientation(image))


def _raster(array: NDArray[Any], metadata: dict[str, str], assumed: tuple[str, ...]) -> Raster:
    """Convert pixels [height, width] or [height, width, bands] to a raster. The last of 2 or 4 bands is alpha."""
    bands = array[np.newaxis] if array.ndim == 2 else np.ascontiguousarray(np.moveaxis(array, 2, 0))
    alpha = len(bands) if len(bands) in _ALPHA.values() else None
    mask = None if alpha is None else bands[alpha - 1] != 0
    colours = picture_colours(len(bands))
    return Raster(bands, mask=mask, alpha=alpha, metadata=metadata, assumed=assumed, colours=colours)


def picture_colours(count: int) -> tuple[str | None, ...]:
    """Return the colour names of a picture's ``count`` bands: red, green, blue and alpha. Empty for a grey picture."""
    return ("red", "green", "blue", "alpha")[:count] if count >= len("rgb") else ()


def _exif_orientation(image: Image.Image) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the EXIF orientation of a loaded picture, as (metadata items, notices to the user).

    Both are empty if the picture is upright or its EXIF data is damaged. Pillow turns a TIFF upright when it loads it,
    and removes the orientation.
    """
    try:
        orientation = image.getexif().get(ORIENTATION_TAG)
    except (*PICTURE_ERRORS, struct.error):
        return {}, ()
    return orientation_facts(orientation)


def _check_size(image: Image.Image, name: str) -> None:
    """Raise InputError if a picture has more pixels than Pillow allows: twice ``PIL.Image.MAX_IMAGE_PIXELS``."""
    width, height = image.size
    most = Image.MAX_IMAGE_PIXELS
    if most is not None and height * width > 2 * most:
        raise _too_large(name, f"{height} x {width} pixels, and {2 * most} at most")


def _too_large(name: str, reason: object) -> InputError:
    return InputError(f"{name} is larger than pictures may be: {reason}; cut it, or convert it to a tiled GeoTIFF")


def _plain(image: Image.Image) -> Image.Image:
    """Convert a picture to a Pillow mode that stores one channel for each band: L, LA, RGB, RGBA, I;16, I or F."""
    if "transparency" in image.info and image.mode in ("1", "L"):
        return image.convert("LA")
    if image.mode in ("PA", "La", "RGBa") or "transparency" in image.info:
        return image.convert("LA" if image.mode == "La" else "RGBA")
    if image.mode in _AS_STORED:
        return image
    if image.mode.startswith("I;16"):
        return image.convert("I;16")
    return image.convert("L" if image.mode == "1" else "RGB")


def _deep_png(image: Image.Image, file: BinaryIO) -> NDArray[Any] | None:
    """Decode a 16-bit PNG with several bands, which Pillow would cut to 8 bits. Return None for other pictures."""
    if image.format != "PNG" or image.mode not in ("RGB", "RGBA", "LA"):
        return None
    file.seek(24)
    if file.read(1) != b"\x10":
        return None
    import imagecodecs

    file.seek(0)
    return np.asarray(imagecodecs.png_decode(file.read()))


def declared_picture(head: bytes, file: SharedFile) -> DeclaredSize | None:
    """Return the size that the header of a picture declares, or None if the format is not known."""
    if gdal_format(head) is JPEG2000:
        return _of_jpeg2000(file)
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return _of_webp(head, file)
    try:
        image = _opened(cast("BinaryIO", file), head)
    except _TOO_LARGE as error:
        raise _too_large(file.name, error) from error
    except PICTURE_ERRORS as error:
        raise _damaged(file.name, error) from error
    if image is None:
        return None
    deep = image.format == "PNG" and head[24:25] == b"\x10"
    itemsize = 2 if deep or image.mode.startswith("I;16") else 4 if image.mode in ("I", "F") else 1
    return _whole(file, image.size, _bands(image), itemsize)


def _of_webp(head: bytes, file: SharedFile) -> DeclaredSize:
    """Read the size that the header of a WebP file declares.

    Pillow is not used, since it would read the whole file and allocate its pixels.
    """
    size = coded_size(head)
    if size is None:
        raise _damaged(file.name, f"it begins with {head[12:16]!r}")
    alpha = (head[12:16] == b"VP8X" and head[20] & 0x10) or (head[12:16] == b"VP8L" and head[24] & 0x10)
    return _whole(file, (size[1], size[0]), 4 if alpha else 3, 1)


def _damaged(name: str, reason: object) -> InputError:
    return InputError(f"{name} is a truncated or damaged picture: {reason}; fetch it again")


def _whole(file: SharedFile, size: tuple[int, int], bands: int, itemsize: int) -> DeclaredSize:
    """Return the size and memory need of a picture that must be decoded as a whole. ``size`` is (width, height)."""
    width, height = size
    pixel = max(bands * itemsize, 4 if bands > 1 else 1)
    return DeclaredSize(height, width, bands, itemsize, height * width * pixel + file.size)


def _bands(image: Image.Image) -> int:
    """Return the number of bands that `read_picture` returns for a picture."""
    transparent = "transparency" in image.info
    if image.mode in ("1", "L", "I", "F") or image.mode.startswith("I;16"):
        return 2 if transparent and image.mode in ("1", "L") else 4 if transparent else 1
    if image.mode in ("LA", "La"):
        return 2
    return 4 if transparent or image.mode in ("RGBA", "RGBa", "PA") else 3


def _of_jpeg2000(file: SharedFile) -> DeclaredSize:
    at = next((at for kind, at in boxes(file.read_at) if kind == b"jp2c"), 0)
    stream = codestream(file.read_at(at, 42))
    bits = [] if stream is None else [(byte & 0x7F) + 1 for byte in file.read_at(at + 42, 3 * stream.bands)[::3]]
    if stream is None or not bits:
        raise InputError(f"{file.name} is a damaged JPEG 2000: it has no codestream with pixels; fetch it again")
    at_once = math.prod(stream.tile) * stream.bands * 4 + stream.table_bytes + file.size
    itemsize = 1 << math.ceil(math.log2(-(-max(bits) // 8)))
    return DeclaredSize(stream.height, stream.width, stream.bands, itemsize, at_once)
