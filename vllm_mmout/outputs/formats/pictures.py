"""Pictures, encoded by Pillow."""

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
"""PNG is written on the way of a request: level 1 takes a third of the time of level 6, for some tenths more bytes."""


def write(output: Any, file: BinaryIO, form: Format, **options: Any) -> None:
    """Write the ``image`` of an output; ``quality`` of lossy formats is 1 to 100, 90 by default."""
    file.write(encode_picture(output.image, form.name, **options))


def write_raster(output: Any, file: BinaryIO, form: Format, **options: Any) -> None:
    """The same of a raster, black where nothing is known in formats without transparency."""
    image = output.image if form.transparent else flattened(output.image)
    file.write(encode_picture(image, form.name, **options))


def encode_picture(image: Image, name: str, quality: object = None) -> bytes:
    """The bytes of a picture file; ``quality`` of lossy formats is 1 to 100, None for 90."""
    form = FORMATS[name]
    if form.picture and not form.transparent and "A" in image.getbands():
        can = listed(one.title for one in FORMATS.values() if one.transparent)
        raise SaveError(f"{form.title} has no transparency, the picture has an alpha channel; save it as {can}")
    buffer = BytesIO()
    try:
        image.save(buffer, format=name.upper(), **settings_of(form, quality))
    except KeyError:
        raise SaveError(f"writing {name} needs a Pillow built with it; install Pillow anew") from None
    except (OSError, ValueError) as error:
        raise SaveError(
            f"{name} cannot hold a picture of {image.width} x {image.height}: {error}; save it as PNG"
        ) from error
    return buffer.getvalue()


def flattened(image: Image, colour: str = "black") -> Image:
    """The picture without alpha, of one colour where it was transparent."""
    if "A" not in image.getbands():
        return image
    from PIL import Image as Pillow

    plain = image.convert(image.mode.removesuffix("A"))
    ground = Pillow.new(plain.mode, plain.size, colour)
    ground.paste(plain, mask=image.getchannel("A"))
    return ground


def settings_of(form: Format, quality: object) -> dict[str, Any]:
    """What Pillow is told beside a picture, or an animation, of a format."""
    if not form.lossy:
        return {"compress_level": _COMPRESSION_LEVEL} if form.name == "png" else {}
    if quality is None:
        return {"quality": _QUALITY}
    if isinstance(quality, bool) or not isinstance(quality, int | np.integer) or not 1 <= quality <= 100:
        raise SaveError(f"quality must be an integer from 1 to 100, got {quality!r}")
    return {"quality": int(quality)}
