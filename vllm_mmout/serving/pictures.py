"""Pictures for models whose input vLLM prepares itself."""

from __future__ import annotations

from typing import BinaryIO

from PIL import Image, UnidentifiedImageError

from vllm_mmout.errors import InputError
from vllm_mmout.raster.picture import DECODER_ERRORS


def rgb_picture(file: BinaryIO) -> Image.Image:
    """Decode a picture; blocks.

    Args:
        file: open, at its start; its name is for messages.

    Raises:
        InputError: it is no picture that Pillow reads, a damaged one, or larger than Pillow's limit.

    """
    try:
        with Image.open(file) as picture:
            return picture.convert("RGB")
    except UnidentifiedImageError:
        raise InputError(
            f"{file.name} is no picture that this model takes; send a PNG, JPEG or WebP, grey or RGB"
        ) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InputError(f"{file.name} is larger than pictures may be: {error}; send a smaller one") from error
    except DECODER_ERRORS as error:
        raise InputError(f"{file.name} is a truncated or damaged picture: {error}; send it anew") from error
