"""PixelLimit, which rejects files with too many pixels before they are decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO, Final

from vllm_mmout.errors import InputError
from vllm_mmout.geo import declared_size

_MAX_DECODED: Final = 2**30
"""Maximum memory in bytes to decode one block of a file. A block is a strip or tile of a TIFF. In most other formats
the whole picture is one block."""


@dataclass(frozen=True, slots=True)
class PixelLimit:
    """Limit on the number of pixels of an input file. `check` reads the size from the file's header before decoding."""

    pixels: int
    """Maximum number of pixels of an input file, height x width."""
    flag: str
    """Server flag that sets the maximum number of pixels, such as ``--mmout-max-pixels``. Error messages mention it."""
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
