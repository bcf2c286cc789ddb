"""PixelLimit, which rejects files with too many pixels before they are decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO, Final

from vllm_mmout.errors import InputError
from vllm_mmout.geo import declared_size

_MAX_DECODED: Final = 2**30
"""Maximum memory in bytes for decoding a part of a file that can only be decoded whole: a strip or tile of a TIFF, or
the whole of most other pictures."""


@dataclass(frozen=True, slots=True)
class PixelLimit:
    """Maximum number of pixels of an input file, which is checked by the file's header before decoding."""

    pixels: int
    """Maximum number of pixels of an input file, height x width."""
    flag: str
    """Name of the server's flag that sets the maximum number of pixels, for messages."""
    why: str = ""
    """Text that error messages append to the maximum number of pixels, such as the reason for it."""
    remedy: str = "cut it"

    def check(self, file: BinaryIO) -> None:
        """Raise InputError if a file's header declares too many pixels, or blocks too large to decode in memory."""
        size = declared_size(file)
        if size.pixels > self.pixels:
            raise InputError(
                f"{file.name} has {size.height} x {size.width} pixels, this server takes at most"
                f" {self.pixels}{self.why}; {self.remedy}, or ask for a larger {self.flag}"
            )
        if size.at_once > _MAX_DECODED:
            raise InputError(
                f"{file.name} takes {size.at_once >> 20} MiB to be decoded, which must be in memory at once,"
                f" {_MAX_DECODED >> 20} MiB at most; store it in tiles, as with gdal_translate -of COG"
            )
