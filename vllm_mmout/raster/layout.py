"""How the pixels of a GeoTIFF are laid out and compressed; every writer asks here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import imagecodecs
import numpy as np
import tifffile

from vllm_mmout.errors import SaveError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from numpy.typing import DTypeLike, NDArray

    from vllm_mmout.raster.geotag import GeoTag

Compression = Literal["deflate", "zstd"]

BLOCK = 512
"""Height and width of a block, where the raster is larger than one."""

_KINDS = "uif"
_PREDICTED = {"u": (1, 2, 4), "i": (1, 2, 4), "f": (4, 8)}
"""Sizes in bytes for which tifffile, imagecodecs and GDAL all have a predictor, by kind of dtype."""
_ENCODERS: dict[Compression, Callable[..., bytes | bytearray]] = {
    "deflate": imagecodecs.deflate_encode,
    "zstd": imagecodecs.zstd_encode,
}
_NAMES: dict[Compression, str] = {"deflate": "zlib", "zstd": "zstd"}
"""What tifffile calls them."""


def stored_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """The dtype in which a GeoTIFF holds such pixels: bool becomes uint8, byte order that of the machine.

    Raises:
        SaveError: a GeoTIFF holds no such numbers.

    """
    found = np.dtype(dtype)
    if found == np.bool_:
        return np.dtype(np.uint8)
    if found.kind not in _KINDS:
        raise SaveError(f"a GeoTIFF takes integers or floating point, got {found}")
    return found.newbyteorder("=")


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of one file: blocks of 512, or one where the raster is no larger; bands one after the other."""

    bands: int
    height: int
    width: int
    dtype: np.dtype[Any]
    """As `stored_dtype` gives it."""
    compression: Compression = "deflate"

    def __post_init__(self) -> None:
        if self.compression not in _ENCODERS:
            raise SaveError(f"compression must be one of {', '.join(_ENCODERS)}, got {self.compression!r}")

    @property
    def tiled(self) -> bool:
        """Whether the file has tiles, rather than one strip a band."""
        return max(self.height, self.width) > BLOCK

    @property
    def block(self) -> tuple[int, int]:
        """Height and width of what is compressed at once."""
        return (BLOCK, BLOCK) if self.tiled else (self.height, self.width)

    @property
    def predicted(self) -> bool:
        """Whether differences of neighbours are compressed rather than the numbers themselves."""
        return self.dtype.itemsize in _PREDICTED[self.dtype.kind]

    @property
    def level(self) -> int:
        """How hard to compress: where more than this gains a few hundredths and takes half as much time again."""
        return 3 if self.dtype.itemsize == 1 else 1

    def encode(self, plane: NDArray[Any]) -> bytes | bytearray:
        """Compress one block of one band, of the full size of a block.

        Args:
            plane: [height, width] of ``dtype``, contiguous.

        """
        encoder = _ENCODERS[self.compression]
        if not self.predicted:
            return encoder(plane, level=self.level)
        if self.dtype.kind == "f":
            return encoder(imagecodecs.floatpred_encode(plane, axis=-1), level=self.level)
        numbers = plane.view(f"u{self.dtype.itemsize}")  # TIFF has differences wrap around
        differences = np.empty_like(numbers)
        differences[:, 0] = numbers[:, 0]
        np.subtract(numbers[:, 1:], numbers[:, :-1], out=differences[:, 1:])
        return encoder(differences, level=self.level)

    def write(
        self,
        target: Path | BinaryIO,
        pixels: NDArray[Any] | Iterator[bytes],
        *,
        tags: Sequence[GeoTag],
        colours: NDArray[np.uint16] | None,
        bigtiff: bool,
    ) -> None:
        """Write the file.

        Args:
            target: where to.
            pixels: [bands, height, width], or all blocks encoded: band by band, in each row by row.
            tags: what `vllm_mmout.raster.tags` makes of all that is known.
            colours: colour table, uint16 [3, 256].
            bigtiff: whether offsets have 64 bits.

        """
        rgb = self.bands == 3 and self.dtype == np.uint8
        plain = "rgb" if rgb else "minisblack"
        shape = (self.bands, self.height, self.width)
        data = pixels.reshape(shape[self.bands == 1 :]) if isinstance(pixels, np.ndarray) else pixels
        with tifffile.TiffWriter(target, bigtiff=bigtiff, byteorder="<") as tiff:
            tiff.write(
                data,
                shape=shape[self.bands == 1 :],
                dtype=self.dtype,
                tile=self.block if self.tiled else None,
                rowsperstrip=None if self.tiled else self.height,
                planarconfig="separate" if self.bands > 1 else None,
                photometric=plain if colours is None else "palette",
                colormap=colours,
                compression=_NAMES[self.compression],
                compressionargs={"level": self.level},
                predictor=self.predicted,
                metadata=None,
                software=False,
                description=None,
                extratags=[(tag.code, tag.dtype, tag.count, tag.value, True) for tag in tags],
            )
