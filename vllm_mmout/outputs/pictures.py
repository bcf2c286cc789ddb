"""Encoding pictures with Pillow."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from vllm_mmout.errors import SaveError

if TYPE_CHECKING:
    from PIL.Image import Image

PICTURE_FORMATS = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp"}
_WITH_QUALITY = frozenset({"jpeg", "webp"})
_QUALITY = 90
_COMPRESSION_LEVEL = 1
"""PNG is written on the way of a request: level 1 takes a third of the time of level 6, for some tenths more bytes."""


def encode_picture(image: Image, name: str, options: dict[str, Any]) -> bytes:
    """The bytes of a picture file.

    Args:
        image: grey, RGB, with alpha or without.
        name: "png", "jpeg", "webp" or "tiff".
        options: ``quality`` from 1 to 100 for JPEG and WebP, 90 by default.

    Raises:
        SaveError: the format cannot hold the picture, or an option is unknown or out of range.

    """
    settings = _settings(name, dict(options))
    if name == "jpeg" and "A" in image.getbands():
        raise SaveError("JPEG has no transparency, the picture has an alpha channel; save it as PNG or WebP")
    buffer = BytesIO()
    try:
        image.save(buffer, format=name.upper(), **settings)
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


def _settings(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The arguments for Pillow."""
    quality = options.pop("quality", None)
    if options:
        raise SaveError(f"unknown option {', '.join(sorted(options))} for {name} (known: quality, for JPEG and WebP)")
    if name not in _WITH_QUALITY:
        if quality is not None:
            raise SaveError(f"{name} is lossless and has no quality; leave it out, or save as JPEG or WebP")
        return {"compress_level": _COMPRESSION_LEVEL} if name == "png" else {}
    if quality is None:
        return {"quality": _QUALITY}
    if isinstance(quality, bool) or not isinstance(quality, int | np.integer) or not 1 <= quality <= 100:
        raise SaveError(f"quality must be an integer from 1 to 100, got {quality!r}")
    return {"quality": int(quality)}
