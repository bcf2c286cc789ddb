"""Tiles that are whole pictures, and say that they are larger than the tile: refused before room is made for them."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from io import BytesIO

import imagecodecs
import numpy as np
import pytest
import tifffile

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.opened import open_raster

SIDE = 256
CLAIM = 12_000
TILE = np.random.default_rng(3).integers(0, 256, (SIDE, SIDE, 3), np.uint8) // 64 * 64
SMALL = 24 * 2**20
"""Bytes; one band of what is claimed has six times as many."""
JPEG, JPEG_2000, PNG, WEBP, LERC = 7, 34712, 34933, 50001, 34887


def tiff(compression: int, tile: bytes) -> bytes:
    """A TIFF of one tile, as it is given."""
    buffer = BytesIO()
    with tifffile.TiffWriter(buffer) as writer:
        writer.write(
            iter([tile]),
            shape=TILE.shape,
            dtype=TILE.dtype,
            tile=(SIDE, SIDE),
            compression=compression,
            photometric="rgb",
        )
    return buffer.getvalue()


def claiming(data: bytes, at: int, form: str, *numbers: int) -> bytes:
    """The same with other numbers at a place."""
    changed = bytearray(data)
    struct.pack_into(form, changed, at, *numbers)
    return bytes(changed)


def jpeg(between: bytes = b"") -> bytes:
    """A JPEG that claims a size; with bytes before its frame, which decoders pass over."""
    data = imagecodecs.jpeg8_encode(TILE)
    at = data.index(b"\xff\xc0")
    data = claiming(data, at + 5, ">HH", CLAIM, CLAIM)
    return data[:at] + between + data[at:]


def png() -> bytes:
    """A PNG that claims a size."""
    data = claiming(imagecodecs.png_encode(TILE), 16, ">II", CLAIM, CLAIM)
    return claiming(data, 29, ">I", zlib.crc32(data[12:29]))


def jpeg_2000(*, size: int, tile: int, container: bool = False) -> bytes:
    """A JPEG 2000 that claims a size, in tiles of another."""
    data = imagecodecs.jpeg2k_encode(TILE, codecformat="j2k")
    data = claiming(claiming(data, 8, ">II", size, size), 24, ">II", tile, tile)
    if not container:
        return data
    whole = imagecodecs.jpeg2k_encode(TILE, codecformat="jp2")
    head = whole[: whole.index(b"\xff\x4f\xff\x51")]
    signature = struct.pack(">I4sQ", 1, b"jP  ", 20) + b"\r\n\x87\n"  # its length in eight bytes
    return signature + head[12:] + data


CLAIMS = {
    "jpeg": (JPEG, jpeg),
    "jpeg, after other bytes": (JPEG, lambda: jpeg(b"\0\1\0")),
    "png": (PNG, png),
    "jpeg 2000": (JPEG_2000, lambda: jpeg_2000(size=CLAIM, tile=CLAIM)),
    "jpeg 2000, in boxes": (JPEG_2000, lambda: jpeg_2000(size=CLAIM, tile=CLAIM, container=True)),
    "lerc": (LERC, lambda: claiming(imagecodecs.lerc_encode(TILE), 14, "<ii", CLAIM, CLAIM)),
}


def refusal(compression: int, tile: bytes) -> tuple[str, int]:
    """What is said of a TIFF with such a tile, and the most bytes that were taken meanwhile."""
    data = tiff(compression, tile)
    with open_raster(data) as opened:
        tracemalloc.start()
        try:
            with pytest.raises(InputError) as refused:
                opened.read()
            return str(refused.value), tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize(("compression", "make"), CLAIMS.values(), ids=CLAIMS)
def test_a_tile_that_claims_to_be_large_is_damaged(compression, make):
    """Some kilobytes take no memory by what stands in them; where they lie and what they claim is said."""
    tile = make()
    assert len(tile) < 200_000
    said, most = refusal(compression, tile)
    assert "is a damaged TIFF: the tile of rows 0 to 255, columns 0 to 255: " in said
    assert f"it states a size of {CLAIM} x {CLAIM} pixels" in said
    assert most < SMALL


def test_a_tile_of_many_tiles_is_damaged():
    """OpenJPEG makes room for each tile of a JPEG 2000 before it reads any."""
    said, most = refusal(JPEG_2000, jpeg_2000(size=SIDE, tile=1))
    assert f"it states a size of {SIDE} x {SIDE} pixels" in said
    assert most < SMALL


def test_lerc_of_many_bands_is_damaged():
    """Bands of one value each are short, and follow each other without a number of them."""
    said, most = refusal(LERC, imagecodecs.lerc_encode(np.zeros((SIDE, SIDE), np.uint8)) * 1000)
    assert f"{1000 * SIDE * SIDE} values" in said
    assert most < SMALL


def test_a_tile_that_does_not_say_its_size_is_damaged():
    """What its decoder would take for a size is not known: a WebP without its container."""
    said, _ = refusal(WEBP, imagecodecs.webp_encode(TILE, lossless=True)[20:])
    assert "it does not say how many pixels it has" in said


@pytest.mark.parametrize("around", [imagecodecs.zlib_encode, imagecodecs.zstd_encode], ids=["deflate", "zstandard"])
def test_what_grows_out_of_lerc_is_damaged(around):
    """Compressed a thousand times by what is around it."""
    said, most = refusal(LERC, around(bytes(2**25)))
    assert "is a damaged TIFF: the tile of rows 0 to 255" in said
    assert most < SMALL


@pytest.mark.parametrize(
    ("compression", "encode"),
    [(PNG, imagecodecs.png_encode), (JPEG_2000, imagecodecs.jpeg2k_encode), (LERC, imagecodecs.lerc_encode)],
    ids=["png", "jpeg 2000", "lerc"],
)
def test_tiles_that_are_as_large_as_they_should_be_are_read(compression, encode):
    """With the pixels that they were made of."""
    data = encode(TILE, reversible=True) if compression == JPEG_2000 else encode(TILE)
    with open_raster(tiff(compression, data)) as opened:
        np.testing.assert_array_equal(opened.read().array, np.moveaxis(TILE, 2, 0))
