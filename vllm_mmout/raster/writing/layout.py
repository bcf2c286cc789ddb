"""How the pixels of a GeoTIFF are laid out and compressed; every writer asks here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import imagecodecs
import numpy as np

from vllm_mmout.errors import SaveError
from vllm_mmout.raster.geotag import GeoTag
from vllm_mmout.raster.writing.ifd import LONG, RATIONAL

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

Compression = Literal["deflate", "zstd"]

BLOCK = 512
"""Height and width of a block, where the raster is larger than one."""

_KINDS = "uif"
_LARGEST = 8
"""Bytes of a number; GDAL reads no longer ones."""
_PREDICTED = {"u": (1, 2, 4), "i": (1, 2, 4), "f": (4, 8)}
"""Sizes in bytes for which tifffile, imagecodecs and GDAL all have a predictor, by kind of dtype."""
_ENCODERS: dict[Compression, Callable[..., bytes | bytearray]] = {
    "deflate": imagecodecs.deflate_encode,
    "zstd": imagecodecs.zstd_encode,
}
_DECODERS: dict[Compression, Callable[..., bytes | bytearray]] = {
    "deflate": imagecodecs.deflate_decode,
    "zstd": imagecodecs.zstd_decode,
}
_NUMBERS: dict[Compression, int] = {"deflate": 8, "zstd": 50000}
"""Values of TIFF's tag Compression."""
_SAMPLE_FORMATS = {"u": 1, "i": 2, "f": 3}
_MINISBLACK, _RGB, _PALETTE = 1, 2, 3
"""Values of PhotometricInterpretation."""


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
    if found.itemsize > _LARGEST:
        raise SaveError(f"a GeoTIFF takes numbers of up to {8 * _LARGEST} bits, got {found}; convert them")
    return found.newbyteorder("=")


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of one image: blocks of 512, or one where the raster is no larger; bands one after the other."""

    bands: int
    height: int
    width: int
    dtype: np.dtype[Any]
    """As `stored_dtype` gives it."""
    compression: Compression = "deflate"
    tiled: bool = True
    """Whether the file has tiles, rather than one strip a band."""

    @classmethod
    def of(cls, bands: int, height: int, width: int, dtype: DTypeLike, compression: Compression = "deflate") -> Layout:
        """The layout of a raster.

        Raises:
            SaveError: a GeoTIFF holds no such raster.

        """
        if min(bands, height, width) < 1:
            raise SaveError(f"a GeoTIFF takes a raster that is not empty, got {bands} x {height} x {width}")
        if compression not in _ENCODERS:
            raise SaveError(f"compression must be one of {', '.join(_ENCODERS)}, got {compression!r}")
        return cls(bands, height, width, stored_dtype(dtype), compression, tiled=max(height, width) > BLOCK)

    @property
    def block(self) -> tuple[int, int]:
        """Height and width of what is compressed at once."""
        return (BLOCK, BLOCK) if self.tiled else (self.height, self.width)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of blocks."""
        return -(-self.height // BLOCK), -(-self.width // BLOCK)

    @property
    def predicted(self) -> bool:
        """Whether differences of neighbours are compressed rather than the numbers themselves."""
        return self.dtype.itemsize in _PREDICTED[self.dtype.kind]

    @property
    def level(self) -> int:
        """How hard to compress: where more than this gains a few hundredths and takes half as much time again."""
        return 3 if self.dtype.itemsize == 1 else 1

    def levels(self) -> list[Layout]:
        """This layout, and those of its overviews: halved, rounded up, until both sides fit one block."""
        found = [self]
        while max(found[-1].height, found[-1].width) > BLOCK:
            found.append(replace(self, height=-(-found[-1].height // 2), width=-(-found[-1].width // 2)))
        return found

    def inside(self, row: int, col: int) -> tuple[int, int]:
        """Height and width of what of a block lies in the raster."""
        return min(BLOCK, self.height - row * BLOCK), min(BLOCK, self.width - col * BLOCK)

    def encode(self, plane: NDArray[Any]) -> bytes | bytearray:
        """Compress one block of one band.

        Args:
            plane: [height, width] of ``dtype``; what of a full block is missing is filled with 0.

        """
        if plane.shape != self.block:
            filled = np.zeros(self.block, self.dtype)
            filled[: plane.shape[0], : plane.shape[1]] = plane
            plane = filled
        plane = np.ascontiguousarray(plane, self.dtype)
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

    def decode(self, data: bytes | memoryview, row: int, col: int) -> NDArray[Any]:
        """What was encoded: the pixels of one block of one band that lie in the raster."""
        height, width = self.block
        raw = _DECODERS[self.compression](data, out=height * width * self.dtype.itemsize)
        plane = np.frombuffer(raw, self.dtype).reshape(height, width)
        if self.predicted and self.dtype.kind == "f":
            plane = imagecodecs.floatpred_decode(plane, axis=-1)
        elif self.predicted:
            unsigned = np.dtype(f"u{self.dtype.itemsize}")
            plane = np.cumsum(plane.view(unsigned), axis=1, dtype=unsigned).view(self.dtype)
        inside = self.inside(row, col)
        return np.ascontiguousarray(plane[: inside[0], : inside[1]])

    def tags(self, colours: NDArray[np.uint16] | None) -> list[GeoTag]:
        """The tags that say how the pixels are stored, but not where.

        Args:
            colours: colour table, uint16 [3, 256].

        """
        rgb = self.bands == 3 and self.dtype == np.uint8 and colours is None
        photometric = _PALETTE if colours is not None else _RGB if rgb else _MINISBLACK
        found = [
            GeoTag(256, LONG, 1, (self.width,)),
            GeoTag(257, LONG, 1, (self.height,)),
            GeoTag.shorts(258, [8 * self.dtype.itemsize] * self.bands),
            GeoTag.shorts(259, [_NUMBERS[self.compression]]),
            GeoTag.shorts(262, [photometric]),
            GeoTag.shorts(277, [self.bands]),
            GeoTag(282, RATIONAL, 1, _ONE),
            GeoTag(283, RATIONAL, 1, _ONE),
            GeoTag.shorts(296, [1]),
        ]
        if self.tiled:
            found += [GeoTag.shorts(322, [BLOCK]), GeoTag.shorts(323, [BLOCK])]
        else:
            found += [GeoTag(278, LONG, 1, (self.height,))]
        if self.bands > 1:
            found.append(GeoTag.shorts(284, [2]))
            if not rgb:
                found.append(GeoTag.shorts(338, [0] * (self.bands - 1)))
        if self.predicted:
            found.append(GeoTag.shorts(317, [3 if self.dtype.kind == "f" else 2]))
        if colours is not None:
            found.append(GeoTag.shorts(320, colours.ravel().tolist()))
        if self.dtype.kind != "u":
            found.append(GeoTag.shorts(339, [_SAMPLE_FORMATS[self.dtype.kind]] * self.bands))
        return found


_ONE = b"\1\0\0\0\1\0\0\0"
"""1 as a RATIONAL: no resolution is known, as ResolutionUnit says."""
