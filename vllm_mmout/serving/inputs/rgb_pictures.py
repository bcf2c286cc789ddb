"""Decoding of a client's picture as RGB, for models that take pictures rather than rasters."""

from __future__ import annotations

from typing import BinaryIO

from PIL import Image, UnidentifiedImageError

from vllm_mmout.errors import InputError
from vllm_mmout.geo import PICTURE_ERRORS


def rgb_picture(file: BinaryIO) -> Image.Image:
    """Decode a picture as RGB. The call blocks while the file is read and decoded."""
    try:
        with Image.open(file) as picture:
            return picture.convert("RGB")
    except UnidentifiedImageError:
        raise InputError(
            f"{file.name} is no picture that this model takes; send a PNG, JPEG or WebP, grey or RGB"
        ) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InputError(f"{file.name} is larger than pictures may be: {error}; send a smaller one") from error
    except PICTURE_ERRORS as error:
        raise InputError(f"{file.name} is a truncated or damaged picture: {error}; send it again") from error
