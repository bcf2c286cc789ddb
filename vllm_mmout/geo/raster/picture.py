"""PNG, JPEG, WebP and other pictures, through Pillow: what they declare, and their pixels."""

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
from vllm_mmout.geo.raster.as_seen import ORIENTATION_TAG, orientation_facts
from vllm_mmout.geo.raster.coded_headers import boxes, coded_size, codestream
from vllm_mmout.geo.raster.formats import JPEG2000, gdal_format
from vllm_mmout.geo.raster.raster import Raster
from vllm_mmout.geo.raster.segments import DECODER_ERRORS as OF_SEGMENTS

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.files import SharedFile

PICTURE_ERRORS = (*OF_SEGMENTS, SyntaxError)
"""What Pillow's decoders raise on damaged data; a broken PNG is a SyntaxError."""

_NOT_IT = (SyntaxError, IndexError, TypeError, struct.error)
"""What Pillow's plugins raise of a file that is of another format."""
_TOO_LARGE = (Image.DecompressionBombError, Image.DecompressionBombWarning)
"""What some of its plugins raise of themselves when they open a file."""
FORMATS = ("PNG", "JPEG", "MPO", "WEBP", "GIF", "BMP", "JPEG2000", "PPM", "AVIF")
"""Formats of pictures. Others that Pillow opens stay out: EPS would start a PostScript interpreter on the file."""
_AS_STORED = frozenset({"L", "RGB", "RGBA", "LA", "I;16", "I", "F"})
_ALPHA = {"LA": 2, "RGBA": 4}


@dataclass(frozen=True, slots=True)
class DeclaredSize:
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


def may_be_picture(head: bytes) -> bool:
    """Whether a file begins as a picture of a known format does; what does not need not be read whole."""
    return next(_plugins(head), None) is not None


def _opened(file: BinaryIO, head: bytes) -> Image.Image | None:
    """Open a picture without decoding it; None if it is none of a known format.

    Pillow's plugins are called as ``Image.open`` does, which would warn of large pictures, or refuse them in other
    words.
    """
    for plugin in _plugins(head):
        file.seek(0)
        try:
            return plugin(file, "")
        except _NOT_IT:
            continue
    return None


def _plugins(head: bytes) -> Iterator[Callable[[Any, str], Image.Image]]:
    Image.init()
    start = head[:16].ljust(16, b"\0")
    for plugin, accept in (Image.OPEN[known] for known in FORMATS if known in Image.OPEN):
        answer = True if accept is None else accept(start)
        if answer and not isinstance(answer, str):  # a string says why not
            yield plugin


def read_picture(file: BinaryIO, name: str) -> Raster | None:
    """Read the first frame of a picture.

    Grey, RGB, 16-bit and floating-point pictures are read as stored; palettes become RGB, bilevel ones grey 0 and 255,
    CMYK, YCbCr and the rest RGB. Transparency becomes an alpha band. How EXIF says that it is to be turned stands in
    the metadata, under GDAL's name.
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
    """Return the bands of a picture that Pillow has opened, as `read_picture` gives those of its file."""
    image.load()  # before it is asked how to turn it: Pillow turns a TIFF as it loads it
    return _raster(np.asarray(_plain(image)), *_exif_orientation(image))


def _raster(array: NDArray[Any], metadata: dict[str, str], assumed: tuple[str, ...]) -> Raster:
    """Return [height, width] or [height, width, bands] as a raster; with two or four bands the last one is alpha."""
    bands = array[np.newaxis] if array.ndim == 2 else np.ascontiguousarray(np.moveaxis(array, 2, 0))
    alpha = len(bands) if len(bands) in _ALPHA.values() else None
    mask = None if alpha is None else bands[alpha - 1] != 0
    colours = picture_colours(len(bands))
    return Raster(bands, mask=mask, alpha=alpha, metadata=metadata, assumed=assumed, colours=colours)


def picture_colours(count: int) -> tuple[str | None, ...]:
    """Return the colours of the bands of a picture of Pillow in grey or RGB, with or without alpha."""
    return ("red", "green", "blue", "alpha")[:count] if count >= len("rgb") else ()


def _exif_orientation(image: Image.Image) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return how a loaded picture must be turned, as `orientation_facts`; nothing where EXIF says nothing of it.

    A TIFF is upright once Pillow has loaded it, and says nothing of it then.
    """
    try:
        said = image.getexif().get(ORIENTATION_TAG)
    except (*PICTURE_ERRORS, struct.error):
        return {}, ()
    return orientation_facts(said)


def _check_size(image: Image.Image, name: str) -> None:
    """Refuse what Pillow refuses: it warns of half of that, which is a usual size here."""
    width, height = image.size
    most = Image.MAX_IMAGE_PIXELS
    if most is not None and height * width > 2 * most:
        raise _too_large(name, f"{height} x {width} pixels, and {2 * most} at most")


def _too_large(name: str, what: object) -> InputError:
    return InputError(f"{name} is larger than pictures may be: {what}; cut it, or convert it to a tiled GeoTIFF")


def _plain(image: Image.Image) -> Image.Image:
    """The picture in a mode whose samples are bands."""
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
    """The samples of a PNG of 16 bits and several bands, which Pillow cuts to 8; None for any other picture."""
    if image.format != "PNG" or image.mode not in ("RGB", "RGBA", "LA"):
        return None
    file.seek(24)
    if file.read(1) != b"\x10":
        return None
    import imagecodecs

    file.seek(0)
    return np.asarray(imagecodecs.png_decode(file.read()))


def declared_picture(head: bytes, file: SharedFile) -> DeclaredSize | None:
    """What a picture declares; None if it is none."""
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
    """What a WebP declares: Pillow would read all of it, and make room for its pixels."""
    size = coded_size(head)
    if size is None:
        raise _damaged(file.name, f"it begins with {head[12:16]!r}")
    alpha = (head[12:16] == b"VP8X" and head[20] & 0x10) or (head[12:16] == b"VP8L" and head[24] & 0x10)
    return _whole(file, (size[1], size[0]), 4 if alpha else 3, 1)


def _damaged(name: str, what: object) -> InputError:
    return InputError(f"{name} is a truncated or damaged picture: {what}; fetch it anew")


def _whole(file: SharedFile, size: tuple[int, int], bands: int, itemsize: int) -> DeclaredSize:
    """Of a picture, which is read and decoded as a whole."""
    width, height = size
    pixel = max(bands * itemsize, 4 if bands > 1 else 1)
    return DeclaredSize(height, width, bands, itemsize, height * width * pixel + file.size)


def _bands(image: Image.Image) -> int:
    """How many bands `read_picture` gives of a picture."""
    transparent = "transparency" in image.info
    if image.mode in ("1", "L", "I", "F") or image.mode.startswith("I;16"):
        return 2 if transparent and image.mode in ("1", "L") else 4 if transparent else 1
    if image.mode in ("LA", "La"):
        return 2
    return 4 if transparent or image.mode in ("RGBA", "RGBa", "PA") else 3


def _of_jpeg2000(file: SharedFile) -> DeclaredSize:
    at = next((at for kind, at in boxes(file.read_at) if kind == b"jp2c"), 0)
    found = codestream(file.read_at(at, 42))
    bits = [] if found is None else [(said & 0x7F) + 1 for said in file.read_at(at + 42, 3 * found.bands)[::3]]
    if found is None or not bits:
        raise InputError(f"{file.name} is a damaged JPEG 2000: it has no codestream with pixels; fetch it anew")
    at_once = math.prod(found.tile) * found.bands * 4 + found.table_bytes + file.size
    itemsize = 1 << math.ceil(math.log2(-(-max(bits) // 8)))
    return DeclaredSize(found.height, found.width, found.bands, itemsize, at_once)
