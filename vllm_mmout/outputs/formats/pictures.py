"""Encode outputs as picture files with Pillow."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from vllm_mmout.errors import SaveError
from vllm_mmout.outputs.formats import FORMATS, Format, listed

if TYPE_CHECKING:
    from PIL.Image import Image

_QUALITY = 90
_COMPRESSION_LEVEL = 1
"""zlib level of PNG files. Level 1 is three times as fast as level 6, and files are only somewhat larger."""


def write(output: Any, file: BinaryIO, form: Format, **options: Any) -> None:
    """Write the ``image`` of an output as a picture file. Lossy formats have the option ``quality``.

    ``quality`` is 1 to 100, by default 90.
    """
    file.write(encode_picture(output.image, form.name, **options))


def write_raster(output: Any, file: BinaryIO, form: Format, **options: Any) -> None:
    """Write the ``image`` of a raster as a picture file. Nodata is black in formats without transparency.

    Lossy formats have the option ``quality``, 1 to 100, by default 90.
    """
    image = output.image if form.transparent else flattened(output.image)
    file.write(encode_picture(image, form.name, **options))


def encode_picture(image: Image, name: str, quality: object = None) -> bytes:
    """Return a picture encoded in the format ``name``. ``quality`` of lossy formats is 1 to 100, by default 90."""
    form = FORMATS[name]
    if form.picture and not form.transparent and "A" in image.getbands():
        others = listed(other.title for other in FORMATS.values() if other.transparent)
        raise SaveError(f"{form.title} has no transparency, the picture has an alpha channel; save it as {others}")
    buffer = BytesIO()
    try:
        image.save(buffer, format=name.upper(), **settings_of(form, quality))
    except KeyError:
        raise SaveError(f"writing {name} needs a Pillow built with it; reinstall Pillow") from None
    except (OSError, ValueError) as error:
        raise SaveError(
            f"{name} cannot hold a picture of {image.width} x {image.height}: {error}; save it as PNG"
        ) from error
    return buffer.getvalue()


def flattened(image: Image, colour: str = "black") -> Image:
    """Remove the alpha channel of a picture. Transparent pixels are blended with ``colour``."""
    if "A" not in image.getbands():
        return image
    from PIL import Image as Pillow

    plain = image.convert(image.mode.removesuffix("A"))
    background = Pillow.new(plain.mode, plain.size, colour)
    background.paste(plain, mask=image.getchannel("A"))
    return background


def settings_of(form: Format, quality: object) -> dict[str, Any]:
    """Return keyword arguments for Pillow's ``save``. Raise SaveError if ``quality`` is not 1 to 100."""
    if not form.lossy:
        return {"compress_level": _COMPRESSION_LEVEL} if form.name == "png" else {}
    if quality is None:
        return {"quality": _QUALITY}
    if isinstance(quality, bool) or not isinstance(quality, int | np.integer) or not 1 <= quality <= 100:
        raise SaveError(f"quality must be an integer from 1 to 100, got {quality!r}")
    return {"quality": int(quality)}
