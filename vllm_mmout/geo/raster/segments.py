"""Read and decode the segments (strips or tiles) of one TIFF image.

tifffile decodes the segments, so every compression, predictor, byte order and bit depth that it supports can be read.
The common ones are decoded faster, see `plain_codecs`.
"""

from __future__ import annotations

import logging
import math
import struct
import sys
import threading
import zlib
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import tifffile
from numpy.typing import NDArray

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.coded_headers import coded_size
from vllm_mmout.geo.raster.lerc import decode_lerc, unwrapped
from vllm_mmout.geo.raster.pieces import PIECE, block_of, cut, row_bytes_of
from vllm_mmout.geo.raster.plain_codecs import plain_decoder
from vllm_mmout.geo.raster.raster import Window
from vllm_mmout.geo.raster.tags import NUMBERS, truncated
from vllm_mmout.geo.raster.tiff_colours import lab_in_rgb, left_to_gdal

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.files import SharedFile
    from vllm_mmout.geo.raster.scratch import Scratch

Place: TypeAlias = tuple[int, int, int]
"""Position of a segment (strip or tile) in the image: plane, row and column of the grid of segments."""

DECODER_ERRORS = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)
"""Exceptions that tifffile and its codecs raise for damaged data. The imagecodecs library raises RuntimeError."""

# tifffile warns about every positive nodata of signed integers. The tag is parsed in this package, so hide the warning.
logging.getLogger("tifffile").addFilter(lambda record: "GDAL_NODATA" not in record.getMessage())

_LARGEST = 512 * 2**20
"""Largest accepted size of a strip or tile in decoded bytes, since it is held in memory as a whole."""
_OFFSET_TAGS = (273, 279, 324, 325)
_WITHOUT_SIZE = {48124, 65000, 65001, 65002}
"""TIFF compressions, used by cameras and microscopes, whose data does not state the size of the picture.

The decoders take the size from the TIFF tags."""
_CODED = frozenset({int(code) for code in tifffile.TIFF.IMAGE_COMPRESSIONS} - _WITHOUT_SIZE | {34887})
"""TIFF compressions that store each strip or tile as a picture with its own header, such as JPEG.

The size in that header is checked before decoding, since decoders allocate memory for it."""
_ROOM = 2**22
"""Limit on the number of pixel values that the header of a compressed strip or tile may state.

The limit is higher for large strips or tiles."""


class UnknownStorageError(InputError):
    """Error for a file that stores its pixels in a way that is not supported."""


class Segments:
    """Segments (strips or tiles) of one TIFF page, in a grid [planes, rows, columns]."""

    def __init__(self, page: tifffile.TiffPage, file: SharedFile) -> None:
        self.file = file
        self._kind = "tile" if page.is_tiled else "strip"
        _check(page, file.name)
        self.planes, _, self.height, self.width, self.samples = page.shaped
        """Number of planes, height and width in pixels, and number of interleaved bands in each plane."""
        self.fill: float = 0
        """Value of all pixels of a strip or tile that the file does not store."""
        dtype = np.dtype(page.dtype)
        self.dtype = np.dtype(np.uint8) if dtype == np.bool_ else dtype.newbyteorder("=")
        offsets, counts = _places(page, file)
        self._in_rgb = lab_in_rgb(page, file.name)
        if self.planes > 1 and page.photometric == tifffile.PHOTOMETRIC.RGB:
            page.photometric = tifffile.PHOTOMETRIC.MINISBLACK  # keep decoders from converting a plane
        pieces, self._offsets, self._counts = cut(page, offsets, counts)
        self.block = block_of(pieces)
        """Height and width of a segment (strip or tile), in pixels."""
        self.bytes = math.prod(self.block) * self.samples * self.dtype.itemsize
        """Size of a decoded segment (strip or tile) in bytes."""
        if self.bytes > _LARGEST:
            raise InputError(
                f"{file.name} has a {self._kind} of {self.block[0]} x {self.block[1]} pixels, {self.bytes >> 20} MiB"
                f" decoded, which must be in memory at once, {_LARGEST >> 20} MiB at most; store it in tiles, for"
                " example with gdal_translate -co TILED=YES -co COMPRESS=DEFLATE"
            )
        self.grid: tuple[int, int] = self._offsets.shape[1:]
        """Number of rows and columns of segments (strips or tiles) in one plane."""
        self.decoded: NDArray[np.int64] = np.zeros(self._offsets.shape, np.int64)
        """Number of times each segment (strip or tile) was decoded, [planes, rows, columns]."""
        self._counting = threading.Lock()
        self._strips = not page.is_tiled
        self._plain = plain_decoder(pieces, self.dtype)
        self._decode: Any = pieces.decode
        self._coded = int(page.compression) in _CODED
        self._lerc = page.compression == tifffile.COMPRESSION.LERC
        self._swapped = page.parent.byteorder != ("<" if sys.byteorder == "little" else ">")
        tables = {"jpegtables": page.jpegtables, "jpegheader": page.jpegheader}
        self._options = {name: value for name, value in tables.items() if value is not None}
        for tag in _OFFSET_TAGS:  # free tifffile's copies, which hold a Python number per segment
            if tag in page.tags:
                del page.tags[tag]
        page.dataoffsets = page.databytecounts = pieces.dataoffsets = pieces.databytecounts = ()

    def window(self, place: Place) -> Window:
        """Return the window of the image that the segment (strip or tile) at ``place`` covers."""
        return Window.of_block(*place[1:], self.block, (self.height, self.width))

    def stored(self, places: Iterable[Place]) -> list[tuple[int, int]]:
        """Return the file offset and byte count of each strip or tile.

        Both are 0 for a strip or tile that the file does not store.
        """
        return [(int(self._offsets[place]), int(self._counts[place])) for place in places]

    def read(self, places: Sequence[Place], scratch: Scratch) -> list[memoryview | None]:
        """Return the stored bytes of strips or tiles. The item for a strip or tile missing in the file is None.

        If all strips or tiles follow each other in the file, they are read at once.
        """
        parts = self.stored(places)
        buffer = scratch.take("stored", sum(count for _, count in parts)).data
        first = parts[0][0]
        if first and all(at + count == after for (at, count), (after, _) in pairwise(parts)):
            data = self.file.view_at(first, buffer)
            return [data[at - first : at - first + count] for at, count in parts]
        starts = accumulate((count for _, count in parts), initial=0)
        return [
            self.file.view_at(at, buffer[start : start + count]) if at else None
            for (at, count), start in zip(parts, starts, strict=False)
        ]

    def decode(self, place: Place, data: memoryview, scratch: Scratch) -> NDArray[Any]:
        """Decode the stored bytes of a strip or tile to pixels [rows, columns, samples], clipped to the image.

        The result is valid until ``scratch`` is used again.
        """
        with self._counting:
            self.decoded[place] += 1
        window = self.window(place)
        rows, columns = (window.height, window.width) if self._strips else self.block
        try:
            pixels = None if self._plain is None else self._plain(data, (rows, columns, self.samples), scratch)
            if pixels is None:
                index = (place[0] * self.grid[0] + place[1]) * self.grid[1] + place[2]
                pixels = self._pixels(data, index)
            pixels = pixels[: window.height, : window.width]
            if pixels.shape != (window.height, window.width, self.samples):
                raise ValueError(f"it has {pixels.shape} pixels")
            pixels = pixels if self._in_rgb is None else self._in_rgb(pixels)
        except DECODER_ERRORS as error:
            band = f" of band {place[0] + 1}" if self.planes > 1 else ""
            raise InputError(
                f"{self.file.name} is a damaged TIFF: the {self._kind} of {window}{band}:"
                f" {type(error).__name__}: {error}"
            ) from error
        return pixels

    def _pixels(self, data: memoryview | bytes, index: int) -> NDArray[Any]:
        if self._coded:
            data = bytes(data)
            if self._lerc:
                data = unwrapped(data, 2 * self.bytes + PIECE)
            self._check_size(data)
            if self._lerc:
                return decode_lerc(data, self.samples, swapped=self._swapped)
        pixels: NDArray[Any] = self._decode(data, index, **self._options)[0][0]
        return pixels

    def _check_size(self, data: bytes) -> None:
        """Check that the header of a compressed strip or tile states a plausible size. Raise ValueError otherwise.

        A size that is far larger than the size of a strip or tile in the TIFF is not plausible.
        """
        size = coded_size(self._options.get("jpegheader", b"") + data)
        if size is None or not size[2]:
            raise ValueError("it does not say how many pixels it has")
        if size[2] > max(_ROOM, 4 * max(4, self.samples) * math.prod(self.block)):
            raise ValueError(f"it states a size of {size[0]} x {size[1]} pixels, {size[2]} values")


def _check(page: tifffile.TiffPage, name: str) -> None:
    try:
        tifffile.TIFF.DECOMPRESSORS[page.compression]
    except KeyError:
        codec = getattr(page.compression, "name", f"number {int(page.compression)}")
        raise UnknownStorageError(
            f"{name} is compressed with {codec}, which cannot be read here; convert it to deflate or LZW"
        ) from None
    if space := left_to_gdal(page):
        raise UnknownStorageError(f"{name} has pixels in {space}, which cannot be read here; convert it to RGB")
    if page.dtype is None:
        raise UnknownStorageError(
            f"{name} has pixels of {page.bitspersample} bits, SampleFormat {page.sampleformat}; convert it"
        )
    if page.axes not in ("YX", "YXS", "SYX") or 0 in page.shaped:
        raise InputError(f"{name} has axes {page.axes} of {page.shape}; a raster must have rows, columns and bands")


def _places(page: tifffile.TiffPage, file: SharedFile) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the file offset and byte count of each strip or tile, as two arrays [planes, rows, columns].

    Both are 0 for a strip or tile that the file does not store.
    """
    height, width = block_of(page)
    if min(height, width) < 1:
        raise InputError(f"{file.name} is a damaged TIFF: a segment has {height} x {width} pixels")
    shape = (page.shaped[0], -(-page.imagelength // height), -(-page.imagewidth // width))
    number = math.prod(shape)
    if min(len(page.dataoffsets), len(page.databytecounts)) < number:
        listed = min(len(page.dataoffsets), len(page.databytecounts))
        raise InputError(f"{file.name} is a damaged TIFF: its size needs {number} segments, but it lists {listed}")
    _check_types(page, file.name)
    offsets = np.array(page.dataoffsets[:number], np.int64)
    counts = np.array(page.databytecounts[:number], np.int64)
    if page.compression == 1 and number == 1 and offsets[0] and not page.is_tiled and row_bytes_of(page):
        counts[0] = height * row_bytes_of(page)  # old writers omit it or write it wrong
    offsets[counts == 0] = 0
    counts[offsets == 0] = 0
    kind = "tile" if page.is_tiled else "strip"
    if min(offsets.min(), counts.min()) < 0:
        index = int(np.minimum(offsets, counts).argmin())
        raise InputError(
            f"{file.name} is a damaged TIFF: {kind} {index} of {number} starts at byte {offsets[index]} and has"
            f" {counts[index]} bytes; rewrite the file"
        )
    ends = np.minimum(offsets, file.size + 1) + np.minimum(counts, file.size + 1)  # no overflow of int64
    if ends.max() > file.size:
        index = int(ends.argmax())
        end = int(offsets[index]) + int(counts[index])
        raise truncated(file.name, file.size, end, f"{kind} {index} of {number}")
    return offsets.reshape(shape), counts.reshape(shape)


def _check_types(page: tifffile.TiffPage, name: str) -> None:
    """Raise InputError if the tags with offsets and byte counts of segments are not of an integer type."""
    for tag in filter(None, map(page.tags.get, _OFFSET_TAGS)):
        if NUMBERS.get(tag.dtype, "f").startswith("f"):
            raise InputError(
                f"{name} is a damaged TIFF: its {tag.name} (tag {tag.code}) are of type {tag.dtype_name}, which"
                " is not an integer type; rewrite the file"
            )
